"""ProxyCommand of the tests: passes bytes between ssh and an `sshd -i`; to kill it is to cut.

sshway.py NOTES DELAY_S BYTES_S COMMAND...

A file in NOTES with our process id says that we pass. SIGSTOP stalls the connection.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PASS_BYTES = 65536


def ignore(_number: int, _frame: object) -> None:
    """Handle a signal that changes nothing."""


def way(notes: Path, delay_s: float, bytes_s: float, command: list[str]) -> None:
    """Pass bytes between our standard streams and a program that has both on one socket.

    Args:
        delay_s: delay of each packet.
        bytes_s: bytes that pass in a second, both ways together.
    """
    note = notes / str(os.getpid())
    # ssh sends it when it ends, which is seen all the same. The note must not outlive this process:
    # whoever cuts would kill another one that has got its number.
    signal.signal(signal.SIGHUP, ignore)
    ends = socket.socketpair()
    near, far = ends[0].detach(), ends[1].detach()
    # Of another machine: the terminal's Ctrl-C does not get there.
    served = subprocess.Popen(command, stdin=far, stdout=far, start_new_session=True)
    os.close(far)
    note.touch()
    poll = select.poll()
    for source in (0, near):
        poll.register(source, select.POLLIN)
    passed = {0: near, near: 1}
    try:
        while True:
            for source, _ in poll.poll():
                data = os.read(source, PASS_BYTES)
                if not data:
                    return
                if lasts_s := delay_s + len(data) / bytes_s:
                    time.sleep(lasts_s)  # of a slow network
                _write(passed[source], data)
    except OSError:
        pass  # one side is gone
    finally:
        os.close(near)
        served.wait()
        note.unlink(missing_ok=True)


def _write(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]


if __name__ == "__main__":
    way(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
