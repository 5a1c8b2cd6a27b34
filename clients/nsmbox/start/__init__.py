"""A box from start to end.

run                all of it in order: look up, plan, ask, start
request_additions  what agents' arguments, settings and repositories add to a request
supervisor         what the supervisor gives to a box, and the watch over it
check              `--check`: what a box needs, and whether it is there
launch             starts the jail, and waits for it
confinement        sets limits between the making of the jail and its command
relay              passes signals on to the command, and ends as the box ends
inside             first program in a box, where its command needs one; a file of its own
unsaved_files      files that a box wrote into its memory, which ends with it
macos              boxes on macOS
"""
