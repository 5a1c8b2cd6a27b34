"""ProxyCommand of the tests: passes bytes between ssh and an `sshd -i`; to kill it is to cut.

sshway.py NOTES DELAY_S COMMAND...     a file in NOTES with our process id says that we pass
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

PASS_BYTES = 65536


def way(notes: Path, delay_s: float, command: list[str]) -> None:
    """Pass bytes between our standard streams and a program that has both on one socket."""
    note = notes / str(os.getpid())
    ends = socket.socketpair()
    near, far = ends[0].detach(), ends[1].detach()
    served = subprocess.Popen(command, stdin=far, stdout=far)
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
                if delay_s:
                    time.sleep(delay_s)  # of a slow network
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
    way(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
