"""Forks of sessions that run: a program of its own traces the original and carries the copy away.

The program is a process for each request, outside of the jail and with the jail's user; it has
nothing of the supervisor's memory. Decision 0030 says why it works like this.

ptrace       system calls that a stopped process makes for its tracer (x86-64)
call_lists   many such calls with one stop
copying      copies of the original's directories
original     parts of a process that cannot be copied, and files that have to be opened again
namespaces   namespaces and file systems of the new session, and its PID 1 until that is its agent
outfit       descriptors, files and privileges of a fork's worker
carrier      the program: from the request to the forks
fork_server  a program that has all this imported, and forks the program for each request
helpers      the supervisor's side of that program
live_fork    one request: asks a helper, and makes jails of what it reports
"""
