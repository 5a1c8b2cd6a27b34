"""Environments that Nix built: found, checked and watched. No module imports a later one.

metadata   metadata of an artifact, checked (pure)
discovery  the artifacts in a directory, or in a piece of metadata
sources    the directories and metadata that variables name, for everyone or one client
"""
