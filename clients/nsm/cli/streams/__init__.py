"""Output as it comes. Pure.

live.py             streamed output and the final text: every byte once, in order
program_output.py   the same for programs of the bridge, line by line
continued.py        a transcript over several connections: each entry once
escapes.py          what jailed programs print, made safe for a terminal
"""
