"""Chosen programs of the host, lent to agents in boxes: each described in a Markdown file.

values       a program as it is described, who asks for one, and what came of it
wording      what models and people read about them
frontmatter  YAML between `---` lines, read as a stranger's, with the lines of its mistakes
walk         the way to a file, one component after another
reach        what a client can write to, by whatever path it is named
commands     whose file it is that a description names; the file that is checked is started
arguments    a call's arguments, character by character
definitions  one file as a program, or as the reason why it is none
shelf        all files of the directory, watched
checking     what is wrong with definitions, for people
variables    the environment of a program: a fixed minimum, and what its description names
running      a program under a monitor, line by line, to its end or its limit
lines        output as lines, and how many of them are told
monitor      the process between the supervisor and the program
entries      a call as lines of the audit
settling     calls that a killed supervisor has left without an end
pacing       how fast one client's calls are written down
ledger       who asked for what, on disk before anything starts
carrying     one call, from the first check to the last line of the ledger
kept         calls that are over, for who asks again
bridge       who may start what; the one way to start it
"""
