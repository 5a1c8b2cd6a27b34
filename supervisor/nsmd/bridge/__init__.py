"""Chosen programs of the host, lent to agents in boxes: each described in a Markdown file.

values             a program as described, who asks for it, and the result
wording            what models and people read about programs
front_matter       YAML between `---` lines, read as untrusted, with the lines of mistakes
path_walk          the way to a file, one component after another, by descriptors
reach              what a client can write to, by whatever path
commands           whose file a description names; the file that was checked is started
arguments          a call's arguments, character by character
definitions        one file as a program, or the reason why it is none
definitions_index  all files of the directory, watched
checking           what is wrong with definitions, for people
variables          the environment variables of a program
output_lines       output as lines, and how many of them are sent
monitor            the process between the supervisor and the program
stop               ask a running program to end
running            run a program under a monitor, to its end or its limit
ledger_entries     a call as lines of the audit
recovery           calls that a killed supervisor left without an end
rate_limit         how many calls of one client are recorded per second
ledger             who asked for what, on disk before anything starts
call               one call, from the first check to the last line of the ledger
call_handle        what the caller holds of a call
finished_calls     results of calls that are over, for clients that ask again
bridge             who may start what; the one way to start it
"""
