"""Running nix: what it gives, how it fails, and that nothing of it is left."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from fake_nix import FakeNix
from nsm.wire.errors import NixUnavailableError
from nsmd.environments.nix.program import (
    LOG_READER,
    Nix,
    NixExitError,
    NixRunError,
    find_nix,
)
from nsmd.host.command_monitor import MAX_END_BYTES, MAX_HEAD_BYTES, TAIL_LINES
from nsmd.host.commands import run_monitored
from nsmd.host.processes import children_of
from processes import ending

LONG_S = 60.0


@pytest.fixture
def fake(tmp_path: Path) -> FakeNix:
    return FakeNix(tmp_path / "bin")


@pytest.fixture
def nix(fake: FakeNix, tmp_path: Path) -> Nix:
    found = find_nix(str(fake.folder), {"NIX_CONFIG": "a = b", "SECRET": "no"}, str(tmp_path))
    assert isinstance(found, Nix)
    return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    yield path, descriptor
    os.close(descriptor)


async def build(nix: Nix, reference: str, timeout_s: float = LONG_S, **more: Any) -> bytes:
    arguments = ["build", "--no-link", "--json", "--", reference]
    return await nix.run(arguments, timeout_s=timeout_s, **more)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_what_it_prints_and_its_log(
    fake: FakeNix, nix: Nix, log: tuple[Path, int], tmp_path: Path
) -> None:
    reference = fake.builds("ok", ("log", ["one", "two"]), ("out", "/nix/store/x"))
    answer = await build(nix, reference, log_fd=log[1])
    assert b"/nix/store/x" in answer
    assert "ok> one\nok> two\n" in log[0].read_text()
    (call,) = fake.calls()
    assert call["arguments"][:2] == ["--extra-experimental-features", "nix-command flakes"]
    assert call["variables"]["NIX_CONFIG"] == "a = b"
    assert call["variables"]["HOME"] == str(tmp_path)
    assert "SECRET" not in call["variables"]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert call["files"] == [min(1024, hard), hard]  # the supervisor's own soft limit is raised


async def test_failure_has_nixs_words_and_the_end_of_the_log(fake: FakeNix, nix: Nix) -> None:
    reference = fake.builds("bad", ("log", ["gcc: no"]), ("fail", "builder failed"))
    with pytest.raises(NixExitError) as caught:
        await build(nix, reference)
    assert "(exit code 1)" in caught.value.message
    assert "error: builder failed" in caught.value.message
    assert "bad> gcc: no" in caught.value.message
    assert caught.value.data["log"][-1] == "error: builder failed"
    with pytest.raises(NixExitError, match="does not provide attribute") as caught:
        await build(nix, "path:/flake#nonesuch")
    assert "nix flake show" in caught.value.hint


async def test_megabytes_of_log_are_bounded(fake: FakeNix, nix: Nix, log: tuple[Path, int]) -> None:
    count = 3 * MAX_HEAD_BYTES // 1000
    reference = fake.builds("huge", ("flood", count), ("log", ["last"]), ("fail", "no"))
    with pytest.raises(NixExitError) as caught:
        await build(nix, reference, log_fd=log[1])
    assert len(caught.value.tail) == TAIL_LINES
    text = log[0].read_text()
    assert len(text) <= MAX_HEAD_BYTES + MAX_END_BYTES + 100
    assert "bytes of the log are left out]" in text
    assert text.endswith("huge> last\nerror: no\n")


async def test_output_is_bounded(fake: FakeNix, nix: Nix) -> None:
    reference = fake.builds("wide", ("print", "z" * 200_000), ("hang", None))
    with pytest.raises(NixRunError, match="more than 1000 bytes"):
        await build(nix, reference, max_output_bytes=1000)


async def test_a_limit_of_time(fake: FakeNix, nix: Nix) -> None:
    reference = fake.builds("slow", ("log", ["step 1"]), ("hang", None))
    with pytest.raises(NixRunError, match=r"stopped after 0\.3 s") as caught:
        await build(nix, reference, timeout_s=0.3)
    assert "interrupted by the user" not in caught.value.message


def slow(fake: FakeNix, tmp_path: Path, *before: tuple[str, Any]) -> tuple[str, Path, Path]:
    """Reference, pipe and pid file of a build with a builder; the pipe opens when that is up."""
    gate, pid = tmp_path / "gate", tmp_path / "pid"
    os.mkfifo(gate)
    steps = (*before, ("builder", str(pid)), ("gate", str(gate)), ("hang", None))
    return fake.builds("slow", *steps), gate, pid


async def test_cancelling_leaves_nothing(fake: FakeNix, nix: Nix, tmp_path: Path) -> None:
    reference, gate, pid = slow(fake, tmp_path)
    async with trio.open_nursery() as builds:
        builds.start_soon(build, nix, reference)
        async with await trio.open_file(gate, "w"):
            builds.cancel_scope.cancel()
    assert gone(int(pid.read_text()))


async def test_what_heeds_no_signal_is_killed(fake: FakeNix, nix: Nix, tmp_path: Path) -> None:
    reference, gate, pid = slow(fake, tmp_path, ("deaf", None))

    async def run() -> None:
        await run_monitored(
            [nix.program, "build", "--", reference],
            reader=LOG_READER,
            variables=nix.variables,
            timeout_s=LONG_S,
            max_output_bytes=0,
            step_s=0.05,
        )

    async with trio.open_nursery() as builds:
        builds.start_soon(run)
        async with await trio.open_file(gate, "w"):
            builds.cancel_scope.cancel()
    assert gone(int(pid.read_text()))


PROGRAM = """
import sys, trio
from pathlib import Path
from nsmd.environments.nix.program import Nix, find_nix

async def main(folder, home, reference):
    nix = find_nix(folder, {}, home)
    assert isinstance(nix, Nix)
    await nix.run(["build", "--", reference], timeout_s=60)

trio.run(main, *sys.argv[1:])
"""


def test_nothing_outlives_a_killed_supervisor(fake: FakeNix, tmp_path: Path) -> None:
    reference, gate, pid = slow(fake, tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(fake.folder), str(tmp_path), reference]
    with ending(subprocess.Popen(command)) as supervisor, gate.open("w"):
        builder = os.pidfd_open(int(pid.read_text()))
        supervisor.kill()
    try:
        poll = select.poll()
        poll.register(builder, select.POLLIN)
        assert poll.poll(LONG_S * 1000), "its builder goes on"
    finally:
        os.close(builder)


async def test_builders_of_a_killed_nix_are_gone(fake: FakeNix, nix: Nix, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    reference = fake.builds("killed", ("builder", str(pid)), ("kill", int(signal.SIGKILL)))
    with pytest.raises(NixRunError, match="SIGKILL"):
        await build(nix, reference)
    assert gone(int(pid.read_text()))


async def test_nix_does_not_outlive_a_killed_monitor(
    fake: FakeNix, nix: Nix, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    reference = fake.builds("slow", ("gate", str(gate)), ("hang", None))

    async def run() -> None:
        with pytest.raises(NixRunError, match="ended unexpectedly"):
            await build(nix, reference)

    async with trio.open_nursery() as builds:
        builds.start_soon(run)
        async with await trio.open_file(gate, "w"):
            (watching,) = [pid for pid in children_of(os.getpid()) if children_of(pid)]
            (started,) = [os.pidfd_open(pid) for pid in children_of(watching)]
            os.kill(watching, signal.SIGKILL)
    with trio.fail_after(LONG_S):
        await trio.lowlevel.wait_readable(started)
    os.close(started)


def test_finding_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    none = find_nix(str(tmp_path), {}, str(home))
    assert isinstance(none, NixUnavailableError)
    assert "https://nixos.org" in none.hint
    (home / ".nix-profile").mkdir()
    found = FakeNix(home / ".nix-profile/bin")
    usual = find_nix("", {}, str(home))
    assert isinstance(usual, Nix)
    assert usual.program == str(found.program)
    assert usual.version == (2, 18)
    old = FakeNix(tmp_path / "old", "nix (Nix) 2.3.16")
    found.folder.chmod(0o777)
    refused = find_nix(str(old.folder), {}, str(home))
    assert isinstance(refused, NixUnavailableError)
    assert "2.3.16, 2.8 or newer is needed" in refused.message
    assert "writable by everyone" in refused.message


@pytest.mark.parametrize(
    "says", ["nix (Lix, like Nix) 2.91.0", "nix (Determinate Nix 3.5.2) 2.28.3", "nix (Nix) 2.8"]
)
def test_versions_of_its_relatives(tmp_path: Path, says: str) -> None:
    fake = FakeNix(tmp_path / "bin", says)
    found = find_nix(str(fake.folder), {}, str(tmp_path))
    assert isinstance(found, Nix)
    assert found.version >= (2, 8)
