"""Values and rules of nsmd: frozen values and pure functions, without I/O.

values         sessions, executions, requests and results
settings       the configuration, with defaults
names          checks of names, and readable new ones
flakes         references to flakes that Nix builds
packages       packages that an environment should have
images         references to container images, and their files as a root directory
devices        devices of the host that an environment's user gave it
head_tail      the beginning and the end of a long text
durations      lengths of time as people read them
request_rules  rules for requests to one host
host_rules     hosts, and patterns of hosts
secrets        secrets as configured, without their values
policy         everything that one session may see, change, reach and use
client_limits  limits of all clients of one listener
limits         limits of sessions, and the first checks of a request
limit_variables  variables by which programs know a session's threads and memory
limit_events   mechanisms that enforce limits, and limits that sessions reach
lifecycle      a session's states as one table
events         events, and their listeners
shutdown       how the supervisor will end, and whether it accepts new work
read_rate      rate at which one client's requests are read
"""
