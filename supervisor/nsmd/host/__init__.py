"""Linux, for the rest of nsmd. This package knows nothing of sessions.

bounded_reads    reads of files whose disk may hang
channel_process  a Python process of nsm that talks with the supervisor and may outlive it
descriptors      division of the supervisor's descriptors between their uses
heap             give freed memory back to the system
journald         log lines in the format of systemd's journal
locales          the user's language and time zone, for jails
log_file         the log file, which never blocks and never fails its caller
log_flood        a limit for log lines that strangers can cause
nvml             memory and use of NVIDIA's GPUs
package_manager  the command that installs a package here
paths            checks of paths: may this be run, shown, trusted
processes        processes as /proc shows them, and descriptors of them
process_stats    memory and processor time of the processes in a jail, from /proc
reserve_thread   one thread for functions that block, where no further one can be started
poller           one task that waits for the descriptors of all sessions
rights           rights that a process gives up before it reads bytes of code
timer            one task that waits for the timers of all sessions; a clock that ignores sleep
tcp_listener     listening TCP sockets
unix_listener    the lock and the socket of a supervisor
monitors         processes that end a program of the host with all that it started
watching         files and directories that are read again when they change
"""
