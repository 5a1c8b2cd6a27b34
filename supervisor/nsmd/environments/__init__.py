"""Environments that code can run in. No module imports a later one.

saved_records   records that outlive the supervisor, in files
on_demand       environments looked for again, and waited for while they are built
catalog         the environments that exist now, and for whom
host_presets    environments made of the host's own interpreters
artifacts       environments that Nix built: found, checked and watched
nix             Nix: found, and run
builds          environments that nsm builds, with Nix or from packages
project         environments that lie in projects, such as .venv: found, agreed to and used
devshell        a project's own development shell as an environment
devices         GPUs of the host in the jails of an environment
"""
