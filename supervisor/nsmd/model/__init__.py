"""The nouns of nsmd: frozen values and pure functions, without I/O.

values         sessions, executions, requests and results
settings       what can be configured, with defaults
names          which names are allowed, and fresh readable ones
flakes         references to what Nix builds
head_tail      the beginning and the end of a long text
durations      lengths of time as people read them
host_rules     which hosts a pattern means
policy         what one session may see, change, reach and use
client_limits  what the clients of one listener are confined to
limits         limits of sessions, and what of a request is checked first
lifecycle      a session's states as one table
events         what happens, told to listeners
shutdown       how the supervisor is to end, and whether it takes new work
read_rate      how fast one client's requests are read
"""
