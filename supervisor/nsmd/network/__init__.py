"""The filtering proxy through which sessions reach other hosts. No module imports a later one.

The socket that code connects to is in its session's network namespace. The agent makes it and
passes it out (docs/contributing/agent-protocol.md, `listen`). Everything else runs here, outside
the jail: code reaches none of our processes, and cannot see how names are resolved.

addresses      which addresses are public
interception   interfaces to what carries the connections to the hosts of secrets
decisions      requests of code and the decisions on them: events and counters
refusal        reasons for refusals, in the words of each protocol
web_proxy      requests to an HTTP proxy, without I/O
socks          requests to a SOCKS 5 proxy, without I/O
resolver       from a host name to a connection with a checked address
serving        one connection of a client
listener       the socket that an agent has passed
gateway        shared by all sessions: name look-ups, room, counters
secrets        values that helpers put into requests, in the place of stand-ins
allowed_hosts  hosts that one session or box may reach, and its requests
network        the network of one session, as it is now
"""

from nsmd.network.allowed_hosts import AllowedHosts
from nsmd.network.gateway import Gateway
from nsmd.network.listener import ListenerError, NamespaceListener
from nsmd.network.network import SessionNetwork

__all__ = ["AllowedHosts", "Gateway", "ListenerError", "NamespaceListener", "SessionNetwork"]
