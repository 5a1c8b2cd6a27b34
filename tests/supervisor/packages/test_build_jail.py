"""The output of commands in the jails of builds, and the owner of what they may change."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from nsmd.jail.user import JailUser
from nsmd.packages import build_jail
from nsmd.packages.build_jail import BuildJail, CommandOutput
from package_world import installation
from realjail import BWRAP

pytestmark = pytest.mark.jail

WORK_S = 0.5
"""Time that each piece takes in the test, on a clock that stands still otherwise."""


def jail_at(folder: Path, said: list[str]) -> BuildJail:
    assert BWRAP is not None
    return BuildJail(
        bwrap=BWRAP,
        user=installation(folder).launcher.user,
        python="/usr/bin/python3",
        directory=str(folder),
        environment=str(folder),
        say=said.append,
    )


async def test_a_flood_of_short_lines_leaves_half_of_the_time_to_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    said: list[str] = []
    read, written = os.pipe()
    os.write(written, b"x\n" * 20_000)
    os.close(written)
    monkeypatch.setattr(
        build_jail, "time", SimpleNamespace(perf_counter=lambda: WORK_S * len(said))
    )
    await CommandOutput(read, jail_at(tmp_path, said)).to_its_end()
    os.close(read)
    assert "\n".join(said) == "\n".join("x" * 20_000)
    assert trio.current_time() == pytest.approx(WORK_S * len(said))


async def test_directories_are_given_away_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "some/where"
    inner.mkdir(parents=True)
    given: dict[str, threading.Thread] = {}

    def way_to_own(_user: JailUser, _directory: str) -> str:
        raise PermissionError("no owner is translated here")

    def give(_user: JailUser, path: str) -> None:
        given[path] = threading.current_thread()
        os.chmod(path, 0o777)

    monkeypatch.setattr(JailUser, "way_to_own", way_to_own)
    monkeypatch.setattr(JailUser, "give", give)
    ran = await jail_at(tmp_path, []).run(["/usr/bin/touch", "/build/some/where/new"])
    assert given.keys() == {str(tmp_path), str(tmp_path / "some"), str(inner)}
    assert threading.current_thread() not in given.values()
    assert (ran.status, (inner / "new").exists()) == (0, True)
