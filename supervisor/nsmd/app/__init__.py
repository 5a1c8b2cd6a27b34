"""Start-up, wiring and shutdown: the only package that knows all others.

service_manager  the socket that systemd passes, and what systemd is told
service_status   tell the service manager how the supervisor is
failed_start     answer clients that wait for a supervisor that cannot start
socket_guard     keep the control socket where clients look for it
instance         the lock and the socket of this supervisor, and what it was handed
startup          gather what every part must know, before the event loop begins
resources        resources that outlive every session
frontends        serve each connection by the protocol that it speaks
services         the services that requests use, and the front ends
signals          how a shutdown or a reload is asked for
daemon           run all of it until asked to end
main             the command line of nsm-supervisor
"""
