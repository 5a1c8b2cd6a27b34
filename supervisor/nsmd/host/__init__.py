"""Linux, for the rest of nsmd. This package knows nothing of sessions.

paths            checks of paths: may this be run, shown, trusted; what an answer depends on
processes        processes as /proc shows them, their memory and time, and descriptors of them
monitor          in a process of its own: it ends a program of the host with all that it started
child_processes  processes of nsm's own code: monitors, and those that outlive a supervisor
command_monitor  in a process of its own: it reads a command's log, and ends it with all it started
commands         long commands, such as Nix: run under a monitor, with their result
rights           rights that a process gives up before it reads bytes of code
descriptors      division of the supervisor's descriptors between their uses
event_loop       timers and descriptors of all sessions; a clock; threads for what blocks
source_watcher   sources of any kind, read now and again whenever they change (inotify)
listeners        the lock and the sockets of a supervisor, and those of sessions' ports
logs             lines for systemd's journal, the log file, and a bound on floods
locales          the user's language and time zone, for jails
package_manager  the command that installs a package here
nvml             memory and use of NVIDIA's GPUs
"""
