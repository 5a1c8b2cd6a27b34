"""Live forks: copies of a running session, made by a helper process that traces it.

There is one helper for each request. It runs outside of the jail as the jail's user, and has
nothing of the supervisor's memory. The reasons are in
docs/explanation/decisions/0030-a-tracer-carries-a-live-fork.md.

traced_session  the original: its processes, descriptors and namespaces
first_process   PID 1 of a fork, until that is its agent; it copies the original's directories
new_jails       jails of the forks of one request, and the process that makes them
fork_worker     a fork's interpreter: how a Bash makes it; its descriptors, files and privileges
helper          the helper, from the request to the forks, and the program that forks helpers
live_fork       one request: asks a helper, and makes jails of what it reports
"""
