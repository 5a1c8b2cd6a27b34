"""Processes that are carried into the namespaces of a session while they are stopped.

A live fork and a worker of an image's Python are both made like this: their memory belongs to code
that nsm does not trust, so they run no instruction of their own before they are shut in.

- `ptrace`: system calls that a stopped process makes for its tracer, also many with one stop.
- `fork_checks`: what of a process no fork may share, and what a fork is given in its place.
"""
