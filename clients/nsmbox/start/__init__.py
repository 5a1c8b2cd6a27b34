"""A box from start to end.

run         all of it in order: look up, plan, ask, start
check       `--check`: what a box needs, and whether it is there
launch      starts the jail, and waits for it
relay       passes signals on to the command, and ends as the box ends
inside      first program in a box, where its command needs one; a file of its own
macos       the same on macOS
"""
