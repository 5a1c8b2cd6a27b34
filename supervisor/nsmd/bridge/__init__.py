"""Chosen programs of the host that agents in boxes may start: a Markdown file describes each.

programs     a program as its file describes it, a call of it, its arguments, the result
path_walk    the way to a file, one component after another, by descriptors
commands     check of a program's file: its owners, who else writes there; the file held open
definitions  files that describe programs; their directory, watched; mistakes, for people
monitor      the process between the supervisor and the program
running      run a program under a monitor, to its end or its limit
ledger       record of calls, on disk before anything starts; their fates; rate limits
calls        handles of calls, and the answers of finished ones
bridge       rights to programs, and the one way to start them
"""
