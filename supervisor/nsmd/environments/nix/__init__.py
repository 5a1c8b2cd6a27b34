"""Runs of Nix for the supervisor.

Nothing is imported here: the monitor of a run imports `messages`, and must start quickly.

messages  nix's log format `internal-json`, read (pure)
program   the Nix of this host: found, run, how a run can fail, and copies of local flakes for it
programs/ git and hg for Nix, kept from repositories that others can write to
"""
