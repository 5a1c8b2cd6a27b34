"""Values and rules of nsmd: frozen values and pure functions, without I/O.

values      environments, sessions, executions, requests and results
settings    the configuration, with defaults
names       checks of names, and readable new ones
packages    what an environment is made of: packages, images, devices, flakes
host_rules  hosts, patterns of hosts, and rules for requests to them
secrets     secrets as configured, without their values
policy      everything that one session may see, change, reach and use
limits      limits of sessions and of clients, and the first checks of a request; rate of requests
lifecycle   a session's states as one table; how the supervisor ends
events      events, and their listeners
text        texts for people: head and tail of a long one, durations
"""
