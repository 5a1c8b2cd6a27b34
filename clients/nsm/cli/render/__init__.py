"""Values as text for people. Pure.

formats.py        tables, sizes, durations, foreign text made visible
sessions.py       live and ended sessions, their jobs and their open ports
inspection.py     `nsm inspect`: a session's rules, and its past
saves.py          saves of sessions, and both as a tree
environments.py   environments, and what could not be preloaded
project_environments.py   environments that lie in a project
builds.py         environments that nsm builds, and the progress of builds
supervisor.py     status and pool
results.py        notes about a result; what code displays, as text and pictures
transcript.py     what was run in a session, and what came of it
replays.py        findings of a replay
programs.py       programs of the bridge
patch.py          changes as a patch that `git apply` takes
"""
