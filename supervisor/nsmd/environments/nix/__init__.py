"""Nix, run for the supervisor.

Nothing is imported here: the monitor must start in the time of an empty Python.

progress  how far a run of nix is
messages  nix's log format `internal-json`, read (pure)
errors    how a run of nix can fail
monitor   a process that reads nix's log, and ends nix with all that it started
runner    start the monitor, and return the result
program   which nix there is, and how it is run
"""
