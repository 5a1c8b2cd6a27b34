"""Ports of sessions, opened on the host. No module imports a later one.

A relay, a process of its own for each session with open ports, accepts connections on the host and
passes their bytes on. Each goes to a connection that the session's agent makes inside and passes
out (docs/contributing/agent-protocol.md, `ports`). Nothing of the host's network gets into a
session. This module imports nothing, since the relay imports it.

relayed        in the relay: one connection, its bytes, and counts that are read here, too
relay          in the relay: its loop
session_ports  the ports of one session, and its relay as the supervisor holds it
port_manager   the ports of all sessions

A socket of the host in the jail would be a way out: connect(2) with AF_UNSPEC makes it a fresh one.
In the supervisor's event loop each byte would delay all sessions, and each restart would cut
connections. One relay for all sessions could be stopped by one of them.
"""
