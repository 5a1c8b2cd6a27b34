"""Start-up, wiring and shutdown: the only package that knows all others.

main             the command line of nsm-supervisor
service_manager  the socket that systemd passes, and messages to systemd
instance         its lock, socket and descriptors, kept in place; answers if it cannot start
startup          open what must be there before the event loop begins
services         open the services that requests use, and the front ends that receive them
daemon           the life of the supervisor: open all parts, serve, and end them
"""
