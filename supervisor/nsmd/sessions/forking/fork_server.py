"""The fork server: a program that has all modules of a helper, and forks one for each request.

Starting a Python takes longer than a whole live fork. The supervisor executes this program, so it
has nothing of the supervisor's memory; it keeps nothing of a request either. Its descriptor 0 is a
socket to the supervisor: the first message has the paths of packages, each other one the socket of
a request. It ends with the supervisor, or after a time without requests; helpers and forks go on.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from contextlib import suppress

from nsmd.sessions.forking import carrier
from sandbox.template.kernel import PR_SET_CHILD_SUBREAPER, prctl

KEEP_S = 900.0
"""Time without a request after which the fork server ends."""


def main() -> None:
    """Fork a helper for each request."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    # Helpers and the PID 1s of forks are its children; nobody asks how these ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    prctl("child subreaper", PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()
    while select.select([control], [], [], KEEP_S)[0]:
        _, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not fds:
            return
        with suppress(OSError):  # no process is left: the end of the socket says that
            if os.fork() == 0:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                carrier.serve(socket.socket(fileno=fds[0]))
        os.close(fds[0])
