"""Sessions on other machines, over OpenSSH.

    place.py      the directory of a host here, its socket that leads there, and a project there
    address.py    `ssh://user@host:port`, and what `[hosts]` of config.toml says of a host
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

OpenSSH has encryption, keys and jump hosts already; a port of our own would need all of that. A
forwarded socket costs one connection for all programs; a program there for each connection (`ssh
host command`) would start a Python each time. The end of such a connection doesn't mean that its
client has ended, so the supervisor keeps one-shots of these clients for five minutes. A client that
lost its connection repeats its calls and says which start of a supervisor (`instance`) they went
to, so that none runs twice.
"""
