"""Chosen programs of the host that agents in boxes may start: a Markdown file describes each.

values             a program as described, who asks for it, and the result
wording            texts about programs, for models and people
path_walk          the way to a file, one component after another, by descriptors
reach              files that a client can write to, by any path
commands           check a program's file and its owners; start exactly that file
arguments          a call's arguments, character by character
definitions        files that describe programs; their directory, watched; mistakes, for people
output_lines       output as lines, and the limit of lines that are sent
monitor            the process between the supervisor and the program
running            run a program under a monitor, to its end or its limit
ledger             record of calls, on disk before anything starts; their fates; rate limits
call               one call, from the first check to the last line of the ledger
call_handle        handle of a call, for its caller
finished_calls     results of finished calls, for clients that ask again
bridge             rights to programs, and the one way to start them
"""
