"""Paths that a box must not see, and files that it must not change.

secrets             paths that no box shows, and directories in which no box begins
nsm_directories     where nsm keeps its own things on the host
guarded_files       files of the project that the host would run later
guarded_git         such files of repositories
search              search of a directory for them
stand_ins           stand-ins for those that are not there; records of running boxes
hidden_paths        files that a person wants hidden: paths, names, patterns
git_repository      repository of a working directory; name and address for commits
git_programs        programs that git's configuration names
git_reader          configuration as git reads it, in a jail that is thrown away
survey              files that count, of all that a box can write
leftovers           what an ended box has left that the host would run
worktrees           files that say of linked worktrees where their repository is
mount_sources       sources of mounts, opened so that no link can exchange them
"""
