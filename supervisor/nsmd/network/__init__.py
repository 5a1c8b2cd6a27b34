"""The filtering proxy through which sessions reach other hosts. No module imports a later one.

The socket that code connects to is in its session's network namespace. The agent makes it and
passes it out (docs/contributing/agent-protocol.md, `listen`). Everything else runs here, outside
the jail: code reaches none of our processes, and cannot see how names are resolved. A broker, a
process of its own for each session, reads what code sends; the supervisor decides. This module
imports nothing, since brokers import it.

decisions        decisions on requests of code: verdicts, refusals, counters
proxy_requests   requests to a proxy, HTTP and SOCKS 5, without I/O
connections      look-ups of names, and connections
host_check       which hosts and addresses code may reach
trust            certificates of the user's company
secrets          values that helpers put into requests, in the place of stand-ins
broker_messages  messages of brokers, which are not trusted
broker           in a broker: connections of clients, and its messages
broker_process   one broker, as the supervisor holds it
listener         the socket that an agent has passed
upstream         the proxy of the user's company, which leads to other hosts
gateway          what all proxies share: look-ups of names, room for connections, counters
named            connections of programs that know no proxy, which the agent passes on
session_proxy    proxy of one session or box: its hosts, requests and broker
network          the network of one session, as it is now

A socket stays in the namespace where it was made, whoever accepts from it. So no process of ours
and no path to the supervisor has to be inside the jail. A virtual interface would let every program
out, but only by addresses: the host that is meant would have to be guessed. For programs which know
no proxy, the agent resolves the names of the list to addresses of its own, and passes connections
to these on with the name.
"""
