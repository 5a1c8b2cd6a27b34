"""The fork server: a program that has all modules of a helper, and keeps one ready for a request.

Starting a Python takes longer than a whole live fork. The supervisor executes this program, so it
has nothing of the supervisor's memory; it keeps nothing of a request either. Its descriptor 0 is a
socket to the supervisor: the first message has the paths of packages, each other one the socket of
a request. It ends with the supervisor, or after a time without requests; helpers and forks go on.
"""

from __future__ import annotations

import gc
import os
import socket

from nsmd.sessions.forking import carrier
from nsmd.sessions.forking.first_process import Kit
from sandbox.linux import PR_SET_CHILD_SUBREAPER
from sandbox.template.kernel import set_option

KEEP_S = 900.0
"""Time without a request after which the fork server ends."""


def main() -> None:
    """Have one helper ready at a time."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    # The PID 1s of forks are its children.
    set_option("child subreaper", PR_SET_CHILD_SUBREAPER, 1)
    kit = Kit.make()
    gc.collect()
    gc.freeze()
    while True:
        try:
            helper = os.fork()
        except OSError:  # no process is left: the end of the socket says that
            return
        if helper == 0:
            carrier.serve(control, kit, KEEP_S)
        pid = status = 0
        while pid != helper:
            pid, status = os.wait()
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == carrier.UNUSED:
            return
