"""Values as text for people. Pure, but for files of pictures, lines of progress, and the clock.

formats.py        tables, sizes, durations, foreign text made visible
sessions.py       live and ended sessions, their jobs and their open ports
inspection.py     `nsm inspect`: a session's rules, and its past
saves.py          saves of sessions, and both as a tree
environments.py   environments: usable ones, builds, and those that lie in a project
supervisor.py     status and pool
results.py        notes about a result; what code displays, as text and pictures
transcript.py     what was run in a session, and what came of it
patch.py          changes as a patch that `git apply` takes
"""
