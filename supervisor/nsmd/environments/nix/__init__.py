"""Runs of Nix for the supervisor.

Nothing is imported here: the monitor must start in the time of an empty Python.

progress  progress of a run of Nix
messages  nix's log format `internal-json`, read (pure)
errors    how a run of nix can fail
monitor   a process that reads Nix's log, and ends Nix with all that it started
runner    start the monitor, and return the result
program   the Nix of this host, and its commands
"""
