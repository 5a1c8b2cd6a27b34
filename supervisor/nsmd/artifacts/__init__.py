"""Environments that Nix built: found, checked and watched. A map; no module imports a later one.

metadata    what an artifact says of itself, checked (pure)
discovery   the artifacts in a directory, or in a piece of metadata
sources     what variables name: directories and metadata, for everyone or for one client
"""
