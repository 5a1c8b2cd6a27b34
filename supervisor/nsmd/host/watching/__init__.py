"""Files and directories, looked at again when they change. No module imports a later one.

inotify            the kernel's notices of changes in directories
trail              what looking a path up depended on: whom to trust with it, what to watch
directory_watches  which directories are watched, and for whom
source_watcher     sources of any kind, looked at now and again whenever they change
"""
