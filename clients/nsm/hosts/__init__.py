"""Sessions on other machines, over OpenSSH.

    place.py      the directory of a host here, and the socket in it that leads there
    address.py    `ssh://user@host:port`, and what `[hosts]` of config.toml says of a host
    projects.py   the project of a client, as a host has it
    copies.py     copies of projects: where they lie, and how they get there
    received.py   the same, on the machine that has them
    ssh.py        one OpenSSH connection to a host, commands over it, and facts beside its socket
    ports.py      ports of sessions there, opened here, and the process that keeps the connection
    setup.py      `nsm host setup`, and the file that it copies
    installer.py  the program of that file, which runs there
    tunnel.py     the way to a host: connects, has a supervisor run there, and forwards its socket

A client that has the path of a host's socket connects to it as to any other. `nsm.startup.start`
opens the tunnel where there is none. These modules use the standard library only; `setup` uses
`packaging`, too. `place` imports little of that, because the shim loads `place` at each start.
"""
