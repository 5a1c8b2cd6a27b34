"""Start-up, wiring and shutdown: the only package that knows all others.

service_manager  the socket that systemd passes, and messages to systemd
service_status   tell the service manager the state of the supervisor
failed_start     answer clients that wait for a supervisor that cannot start
socket_guard     keep the control socket where clients look for it
instance         this supervisor's lock and socket, and the descriptors that it got
startup          gather facts for all parts, before the event loop begins
resources        resources that outlive every session
crash_watch      leave sessions to the next supervisor if a task of this one fails
frontends        serve each connection by the protocol that it speaks
kept_kinds       all kinds of kept records, and which of them this version cannot read
services         the services that requests use, and the front ends
daemon           run all parts until somebody asks for the end
main             the command line of nsm-supervisor
"""
