"""The filtering proxy through which sessions reach other hosts. No module imports a later one.

The socket that code connects to is in its session's network namespace. The agent makes it and
passes it out (docs/contributing/agent-protocol.md, `listen`). Everything else runs here, outside
the jail: code reaches none of our processes, and cannot see how names are resolved. A broker, a
process of its own for each session, reads what code sends; the supervisor decides. This module
imports nothing, since brokers import it.

addresses        which addresses are public
interception     interfaces to what carries the connections to the hosts of secrets
decisions        requests of code and the decisions on them: events and counters
refusal          reasons for refusals, in the words of each protocol
web_proxy        in a broker: requests to an HTTP proxy, without I/O
socks            in a broker: requests to a SOCKS 5 proxy, without I/O
resolver         from a host name to a connection with a checked address
secrets          values that helpers put into requests, in the place of stand-ins
broker_messages  messages of brokers, which are not trusted
proxy_client     in a broker: one connection of a client
broker           in a broker: its messages
broker_process   one broker, as the supervisor holds it
serving          one connection of a client: decisions
listener         the socket that an agent has passed
gateway          shared by all sessions: name look-ups, room, counters
allowed_hosts    hosts that one session or box may reach, its requests, and its broker
network          the network of one session, as it is now
"""
