"""Needs of nsm on this host, and how to meet them: the rows of `nsm doctor`.

report        the table of all checks; bubblewrap, Nix, directories
trials        jails that are tried, and what code in them can do
limit_checks  how sessions are kept to their limits
host          files, variables and user of the host that is checked
kernel        user namespaces, AppArmor, containers, what covers /proc
service       control groups, systemd, lingering
places        socket, lock, directories, free space
room          descriptors, processes, memory, the clock
bridge        definitions of programs, and the file that records calls
http          where MCP over HTTP listens, and its token
clients       entries of MCP clients, and whether they start this nsm
jsonc         JSON with comments, as editors write it
"""
