"""End a node's supervisor when the process that started it ends, however it does.

Run as a program: ``guard.py DIRECTORY``. Its standard input is a pipe from that process. It leaves
the process's group and parent, because Ray kills the children of a worker that ends.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from contextlib import suppress

from nsm import Client, NsmError
from nsm.paths import PathError

SOCKET = "control.sock"

END_TIMEOUT_S = 30.0
"""Time for a supervisor to end; it takes milliseconds, and longer with many sessions."""


def end(directory: str) -> None:
    """End the supervisor with its sessions, wait for its end, and remove its directory."""
    # No supervisor is started, but for sessions that a holder has kept: these are to end, too.
    with suppress(NsmError, PathError, ProcessLookupError):
        client = Client(socket_path=os.path.join(directory, SOCKET), autostart=False)
        pid = client.server.pid
        assert pid is not None, "a supervisor says it"
        process = os.pidfd_open(pid)
        try:
            client.shutdown()
            # It writes its last file after it has closed the connection.
            select.select([process], [], [], END_TIMEOUT_S)
        finally:
            os.close(process)
    shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """Wait for the end of standard input, then end the supervisor."""
    directory = sys.argv[1]
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    end(directory)


if __name__ == "__main__":
    main()
