"""Needs of nsm on this host, and how to meet them: the rows of `nsm doctor`.

report        the table of all checks; bubblewrap, Nix, directories
trials        trial jails, and the abilities of code in them
limit_checks  enforcement of sessions' limits
host          files, variables and user of the checked host
kernel        user namespaces, AppArmor, containers, mounts over /proc
secrets       sources of the secrets of the configuration
service       control groups, systemd, lingering
places        socket, lock, directories, free space
devices       GPUs that environments have
unusable      devices and images of the configuration that are not there, for `nsm config check`
room          descriptors, processes, memory, the clock
bridge        definitions of programs, and the file that records calls
http          address of MCP over HTTP, and its token
clients       entries of MCP clients, and whether they start this nsm
"""
