"""Supervisors' audits of the bridge, each of one that is killed at another point.

Run as a program: ``bridge_writer.py DIRECTORY``. In `DIRECTORY/N` is what there is when the Nth
call of the system that changes a file was the last one, or was about to be made; the last of them
is of a supervisor that was not killed. A program's start is a file, `started`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import trio
import trio.testing

from nsmd.bridge.ledger import ended, open_ledger
from nsmd.bridge.programs import Caller, ProgramEnd, RecordedCall

POINTS = ("open", "write", "fsync", "fdatasync", "unlink", "rename")


async def work(directory: Path) -> None:
    """A call that is started, one that is refused, and the end of the first."""
    caller = Caller(client="test", scope="test", way="control")
    async with open_ledger(str(directory / "audit.log"), max_mb=1) as ledger:
        await trio.testing.wait_all_tasks_blocked()
        call = RecordedCall(id="a", caller=caller, program="deploy", arguments=["x"])
        await ledger.begin(call)
        (directory / "started").touch()
        refused = RecordedCall(id="b", caller=caller, program="deploy", arguments=[";"])
        await ledger.refuse(refused, "no")
        await ledger.end(call, ended(ProgramEnd(exit_code=0)))


def kill_at(point: int) -> None:
    """Have this process killed there; before and after a call are two points."""
    left = point

    def count() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def at(name: str) -> None:
        call = getattr(os, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            count()
            result = call(*args, **kwargs)
            count()
            return result

        setattr(os, name, counted)

    for name in POINTS:
        at(name)


def main(base: Path) -> None:
    """One child for each point, until one is not killed."""
    status = -1
    for point in range(1000):
        directory = base / str(point)
        directory.mkdir()
        child = os.fork()
        if child == 0:
            kill_at(point)
            trio.run(work, directory)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
