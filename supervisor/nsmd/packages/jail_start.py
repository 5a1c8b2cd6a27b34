"""The first program in the jail of a build: it passes a socket out, and becomes uv, for example.

Standard library only, since it runs on the environment's own Python. `CHANNEL PROGRAM ARGUMENT...`:
CHANNEL is a Unix socket on which it passes a listening socket out; -1 for none.
"""

import os
import resource
import socket
import sys

ADDRESS = ("127.0.0.1", 3128)
"""Address of the proxy for programs in the jail. Nothing else listens in its network namespace."""

MAX_PROCESSES = 512
MAX_DATA_BYTES = 8 << 30


def limit(kind: int, amount: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (most, most))


def main() -> None:
    channel, *command = sys.argv[1:]
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NPROC, MAX_PROCESSES)
    limit(resource.RLIMIT_DATA, MAX_DATA_BYTES)
    if int(channel) >= 0:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(ADDRESS)
        listener.listen(128)
        with socket.socket(fileno=int(channel)) as way:
            socket.send_fds(way, [b"+"], [listener.fileno()])
        listener.close()
    os.execv(command[0], command)  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main()
