"""Environments that Nix built: found, checked and watched. No module imports a later one.

metadata   metadata of an artifact, checked (pure)
discovery  artifacts in the directories and metadata that variables name, for everyone or one client
"""
