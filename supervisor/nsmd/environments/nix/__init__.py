"""Runs of Nix for the supervisor.

Nothing is imported here: the monitor of a run imports `messages`, and must start quickly.

messages  nix's log format `internal-json`, read (pure)
errors    how a run of nix can fail
program   the Nix of this host, and its commands
flake_copy  copies of local flakes, without the configuration of their repositories
programs/ git and hg for Nix, kept from repositories that others can write to
"""
