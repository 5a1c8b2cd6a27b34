"""Connecting to a supervisor, which is started first where none listens.

    start.py    connect, or start and connect
    spawn.py    start one that is detached from us

Standard library only: the shim pays for what this imports.
"""
