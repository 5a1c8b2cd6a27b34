"""Files here: those that `nsm cp` reads and writes, and pictures.

operands.py      the two sides of `nsm cp`; pure
progress.py      how far a long copy has come
pictures.py      names for pictures that code displays
"""
