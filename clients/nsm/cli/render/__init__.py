"""Values as text for people. Pure.

formats.py        tables, sizes, durations, foreign text made visible
sessions.py       live and ended sessions
ports.py          open ports of sessions
saves.py          saves of sessions
tree.py           sessions and saves as a tree
jobs.py           programs in sessions
environments.py   environments, and what could not be preloaded
project_environments.py   environments that lie in a project
builds.py         environments that nsm builds, and the progress of builds
supervisor.py     status and pool
results.py        notes about a result
displays.py       what code displays, as text and pictures
transcript.py     what was run in a session, and what came of it
replays.py        findings of a replay
session_rules.py, session_details.py   `nsm inspect`: a session's rules, and its past
programs.py       programs of the bridge
patch.py          changes as a patch that `git apply` takes
"""
