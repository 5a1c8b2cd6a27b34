"""Nix, run for the supervisor: found, asked for its version, started, watched, stopped.

progress   how far a run of nix has come: a value
messages   what nix says in its `internal-json` log format, read; pure
causes     which line of what nix said a person needs; pure
errors     how a run of nix can fail
monitor    a process between the supervisor and nix: reads its log, ends it and all it started
runner     starts the monitor, and gives what came of it
program    which nix there is, and its one way to be run

Nothing is imported here: the monitor starts in the time of an empty Python.
"""
