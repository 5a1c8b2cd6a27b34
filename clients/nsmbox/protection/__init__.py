"""Paths that a box must not see, and files that it must not change.

secrets             paths that no box shows, and directories in which no box begins
nsm_directories     where nsm keeps its own things on the host
guarded_files       files of the project that the host would run later
autorun             names of such files: of editors, agents, shells, desktops
git_repository      repository of a working directory; name and address for commits
submodules          submodules by the index of a repository
leftovers           what an ended box has left that git on the host would run
mount_sources       sources of mounts, opened so that no link can exchange them
"""
