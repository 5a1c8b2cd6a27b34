"""What lies in the file system, and looked at again when it changes. A map; no module imports a
later one.

inotify     the kernel's notices of changes in directories
trail       what looking a path up depended on: whom to trust with it, what to watch
watch       which directories are watched, for whom
keeper      sources of whatever kind, looked at now and again whenever they change
"""
