"""The daemon that owns all sessions, from the ground up: no package imports one below it here.

host          the only place that talks to the kernel about processes, files and sockets in general
model         frozen values, settings, limits, policy, the lifecycle table, events
config        read, check and reload config.toml
fdstore       descriptors that outlive a supervisor, and the holder that keeps them
denials       which rule of its jail stopped code, in one line
jail          start and end jails: bubblewrap, templates and their forks, control groups
agent_link    frames to and from the agent in a jail, checked
network       the filtering proxy through which sessions reach other hosts, and secrets
packages      environments from packages and container images: installed in a jail, kept in a store
environments  what code can run in: which environments there are, builds, Nix, dev shells; GPUs
sessions      one session: its executions, files, transcript, and changes to a copied project
audit         who ran what, in a file that is only appended to
pool          spare sessions, kept ready
bridge        chosen programs of the host, lent to agents in boxes
restart       sessions that outlive the supervisor, and the end of a supervisor
boxes         sockets for agents in boxes
ports         ports of sessions, opened on the host
manager       all sessions; the one way to run code
telemetry     metrics, percentiles and events
control       the control socket: operations for the command line and the Python client
mcp           the endpoint that models see
http          MCP over HTTP
doctor        what nsm needs on this host, and how to get it
app           start-up, wiring, signals, shutdown: the only place that knows everything
"""
