"""Environments that Nix built: found, checked and watched. A map; no module imports a later one.

metadata    what an artifact says of itself, checked (pure)
trail       what looking a path up depended on: whom to trust with it, what to watch
discovery   the artifacts in a directory, or in a piece of metadata
inotify     the kernel's notices of changes in directories
watch       which directories are watched, for whom
keeper      sources of environments, looked at now and again whenever they change
sources     what variables name: directories and metadata, for everyone or for one client
"""
