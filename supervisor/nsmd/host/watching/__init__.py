"""Files and directories that are read again when they change. No module imports a later one.

inotify            the kernel's notices of changes in directories
trail              paths that a look-up depended on: their owners, and what to watch
directory_watches  watched directories, and who wants to know of changes
source_watcher     sources of any kind, read now and again whenever they change
"""
