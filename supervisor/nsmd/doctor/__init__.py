"""Needs of nsm on this host, and how to meet them: the rows of `nsm doctor`.

report      the table of all checks; bubblewrap, Nix, directories
trials      trial jails, the abilities of code in them, and the limits of sessions
system      the checked host: namespaces, security modules, containers, groups, systemd; room
supervisor  the running supervisor, MCP over HTTP, the bridge; directories and free space
configured  secrets, GPUs and images of the configuration
clients     entries of MCP clients, and whether they start this nsm
"""
