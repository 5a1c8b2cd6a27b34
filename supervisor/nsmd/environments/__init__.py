"""Environments that code can run in. No module imports a later one.

catalog        the environments that exist now, and for whom
interpreters   real place and version of an interpreter
host_presets   environments made of the host's own interpreters
artifacts      environments that Nix built: found, checked and watched
nix            Nix: found, run, watched and stopped
builds         environments that nsm has Nix build
devshell       a project's own development shell as an environment
pending        calls that wait for an environment that is being built
provider       all sources of environments behind one interface
"""
