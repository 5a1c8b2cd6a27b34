"""The filtering proxy through which sessions reach other hosts. No module imports a later one.

The socket that code connects to is in its session's network namespace. The agent makes it and
passes it out (docs/contributing/agent-protocol.md, `listen`). Everything else runs here, outside
the jail: code reaches no process of ours, and cannot see how names are resolved.

addresses      which addresses are public
decisions      what code asked for and what became of it: events and counters
refusal        why something is refused, in the words of each protocol
web_proxy      requests to an HTTP proxy, without I/O
socks          requests to a SOCKS 5 proxy, without I/O
resolver       from a host name to a connection with an address that was checked
relay          bytes in both directions
serving        one connection of a client
listener       the socket that an agent has passed
gateway        what all sessions share: name look-ups, room, counters
allowed_hosts  what one session or box may reach, and what it asked for
network        the network of one session, as it is now
"""

from nsmd.network.allowed_hosts import AllowedHosts
from nsmd.network.gateway import Gateway
from nsmd.network.listener import Listener, ListenerError
from nsmd.network.network import SessionNetwork

__all__ = ["AllowedHosts", "Gateway", "Listener", "ListenerError", "SessionNetwork"]
