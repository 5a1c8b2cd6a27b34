"""Jobs on the command line.

foreground.py   a job that has this terminal, or these pipes: `nsm exec`, `nsm attach --job`
raw_terminal.py the terminal's mode meanwhile
"""
