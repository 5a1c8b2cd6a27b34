"""Parts of jails that sessions (`nsmd`) and boxes (`nsmbox`) have in common. No I/O but Landlock's
and a search for files.

seccomp/            the filter of system calls, as a BPF program
landlock.py         keeps a process from the host's abstract sockets
proxyvariables.py   variables by which programs in a jail find its proxy
etc_files.py        finds the files in /etc that programs in /usr need
failure.py          why a jail did not start, and what to do
"""
