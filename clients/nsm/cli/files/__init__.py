"""Files here: those that `nsm cp` reads and writes, and pictures.

operands.py      the two sides of `nsm cp`; pure
local_files.py   read as they are, written whole or not at all
trees.py         directories
progress.py      how far a long copy has come
pictures.py      names for pictures that code displays
"""
