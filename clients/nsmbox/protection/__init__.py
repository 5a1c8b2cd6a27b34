"""Paths that a box must not see, and files that it must not change.

secrets             paths that no box shows, and directories in which no box begins
guarded_files       files of the project that the host would run later
guarded_git         such files of repositories
search              search of a directory for them
stand_ins           stand-ins for those that are not there; records of running boxes
hidden_paths        files that a person wants hidden: paths, names, patterns
git_repository      repository of a working directory; author of commits; what git's settings run
leftovers           what an ended box has left that the host would run
mount_sources       sources of mounts, opened so that no link can exchange them
"""
