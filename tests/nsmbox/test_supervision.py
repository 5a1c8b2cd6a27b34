"""The end of the supervisor while a box runs: its next one is started, or all are told."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import TYPE_CHECKING, cast

import pytest

import nsm
from e2e_support import holder_pid
from nsm.wire.errors import OverloadedError
from nsm.wire.host import BoxPlace, BoxRow
from nsmbox.start import supervisor
from processes import ending
from realjail import needs_bwrap

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from box.world import World

pytestmark = [pytest.mark.jail, needs_bwrap]

GONE = b"nsm box: the supervisor has ended, so this box goes on without sessions of nsm"

RUNS = r"""
while read line; do
    nsm run -e python 'print(6 * 7)' 2>/tmp/said || { tr '\n' ' ' </tmp/said; echo; }
done
"""


def up(world: World, *options: str, autostart: str = "0") -> subprocess.Popen[bytes]:
    """Start a box that runs code whenever it is told to, and wait until it does."""
    box = world.popen(
        *("nsm", "box", "--yes", *options, "--", "sh", "-c", RUNS),
        variables={"NSM_AUTOSTART": autostart},
    )
    assert asked(box) == b"42\n"
    return box


def asked(box: subprocess.Popen[bytes]) -> bytes:
    """Have the box run code, and return the first line of what it says."""
    assert box.stdin is not None
    assert box.stdout is not None
    box.stdin.write(b"\n")
    box.stdin.flush()
    return box.stdout.readline()


def told(box: subprocess.Popen[bytes]) -> bytes:
    """Return the first line that the box's launcher tells of the supervisor."""
    assert box.stderr is not None
    while line := box.stderr.readline():
        if b"supervisor" in line:
            return line
    return b""


def test_a_shutdown_is_told_to_the_person_and_the_agent(world: World) -> None:
    with world.supervisor(), ending(up(world, "--net", "a.example")) as box:
        assert world.run("nsm", "shutdown").returncode == 0
        line = told(box)
        assert line.startswith(GONE + b", network")
        assert line.endswith(b"End the box, and start it again.\n")
        said_inside = asked(box)
        assert said_inside.startswith(b"nsm: no supervisor serves this box")
        assert b"Tell the user: end this box" in said_inside
        _, said = box.communicate()
        assert GONE in said, "it is told at the end, too: agents draw over what comes meanwhile"


@pytest.mark.slow
def test_the_end_of_supervisor_and_holder_is_told(world: World) -> None:
    with world.supervisor() as supervisor, ending(up(world)) as box:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            holder = holder_pid(link, supervisor.directory)
        os.kill(supervisor.pid, signal.SIGSTOP)  # it would start another holder
        for pid in (holder, supervisor.pid):
            os.kill(pid, signal.SIGKILL)
        assert told(box).startswith(GONE)
        box.communicate()


@pytest.mark.slow
def test_a_box_starts_the_next_supervisor(world: World) -> None:
    with world.supervisor() as supervisor, ending(up(world, autostart="1")) as box:
        supervisor.process.kill()
        supervisor.process.wait()
        try:
            assert b"42\n" in (asked(box), asked(box)), "the one that was killed may have got one"
        finally:
            assert world.run("nsm", "shutdown").returncode == 0
        assert told(box).startswith(GONE), "a supervisor that was shut down is not started again"
        box.communicate()
        assert "no supervisor is running" in world.run("nsm", "ps").stderr


def test_a_box_that_takes_all_connections_has_nobody_ask_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise OverloadedError("There are too many connections.")

    pauses: list[float] = []
    lost: list[bool] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                listener.close()

        monkeypatch.setattr(nsm, "Client", refused)
        monkeypatch.setattr(time, "sleep", pause)
        place = BoxPlace(box=cast("BoxRow", None), sockets=str(tmp_path))
        supervisor.watch(place, lambda: lost.append(True), name="test")
    assert pauses == [supervisor.PAUSE_S] * 2
    assert lost == [True]
