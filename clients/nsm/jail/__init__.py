"""Parts of jails that sessions (`nsmd`) and boxes (`nsmbox`) have in common. No I/O but Landlock's.

seccomp/            the filter of system calls, as a BPF program
landlock.py         keeps a process from the host's abstract sockets
proxyvariables.py   variables by which programs in a jail find its proxy
failure.py          why a jail did not start, and what to do
"""
