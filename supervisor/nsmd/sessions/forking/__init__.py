"""Live forks: copies of a running session, made by a helper process that traces it.

There is one helper for each request. It runs outside of the jail as the jail's user, and has
nothing of the supervisor's memory. Decision 0030 says why it works like this.

copying        copies of the original's directories
original       parts of a process that cannot be copied, and files that have to be opened again
bystanders     programs that run beside the original's interpreter, and are kept from the fork
namespaces     namespaces of the original, their limits, and how a process enters them
first_process  PID 1 of a fork, until that is its agent
new_jails      jails of the forks of one request, and the process that makes them
outfit         namespaces, descriptors, files and privileges of a fork's worker
shells         a Bash that waits for commands, and forks where it waits
carrier        the helper: from the request to the forks
fork_server    the program that forks the helpers, with all their modules imported
helpers        the fork server, as the supervisor starts, asks and ends it
live_fork      one request: asks a helper, and makes jails of what it reports
"""
