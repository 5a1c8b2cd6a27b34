"""The way out of sessions: a filtering proxy. A map; no module imports a later one.

addresses    which addresses are the world's
decisions    what was asked for and what became of it: events, and counters
refusal      why something is not reached, in the words of each protocol
webproxy     requests to an HTTP proxy, without I/O
socks        requests to a SOCKS 5 proxy, without I/O
reaching     from a host that is asked for to a connection with an address that was checked
relay        bytes in both directions
serving      one connection of a client
listener     the socket that an agent has passed
gateway      what all sessions share: names, room, counters
way          what one session or box may reach, and what was asked of it
network      the network of one session, as it is now

The socket that code connects to lies in its session's network namespace; the agent has made it and
passed it out (docs/agent-protocol.md, `listen`). Everything else runs here, outside: no process of
ours is within reach of code, and names are resolved where code cannot see it.
"""

from nsmd.proxy.gateway import Gateway
from nsmd.proxy.listener import Listener, ListenerError
from nsmd.proxy.network import SessionNetwork
from nsmd.proxy.way import Way

__all__ = ["Gateway", "Listener", "ListenerError", "SessionNetwork", "Way"]
