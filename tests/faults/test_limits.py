"""The host gives no more descriptors, or no more processes: who is there goes on."""

from __future__ import annotations

import os
import resource
import socket
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import END_TIMEOUT_S, supervisor
from nsm.wire.errors import StartFailedError

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

pytestmark = pytest.mark.jail

WITHOUT_IDLE_THREADS = """
import sys
from trio._core import _thread_cache
_thread_cache.IDLE_TIMEOUT = 0
from nsmd.app import main
sys.argv[1:] = sys.argv[sys.argv.index("nsmd") + 1 :]
sys.exit(main.main())
"""
"""The supervisor, when it has been idle for a while."""


@pytest.fixture(scope="module")
def it() -> Generator[Supervisor]:
    config = "[pool]\nmax_spares = 0\n"
    within = (sys.executable, "-P", "-c", WITHOUT_IDLE_THREADS)
    with supervisor(config=config, within=within) as it:
        yield it


@contextmanager
def limited(pids: set[int], kind: int, soft: int) -> Generator[None]:
    """Hold processes to a limit, as far as they are there."""
    before = {pid: resource.prlimit(pid, kind) for pid in pids}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, kind, (soft, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, kind, limits)


def test_live_sessions_go_on_without_a_free_descriptor(it: Supervisor) -> None:
    with it.client() as client, socket.socket(socket.AF_UNIX) as late:
        client.run("x = 41", env="python", session="a")
        used = len(os.listdir(f"/proc/{it.pid}/fd"))
        with limited({it.pid}, resource.RLIMIT_NOFILE, used):
            assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
            with pytest.raises(StartFailedError, match="ulimit -Hn"):
                client.run("1", env="python", session="b")
            late.connect(it.socket)  # the kernel takes it, and it waits
            assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
        late.settimeout(END_TIMEOUT_S)
        with nsm.Client(connection=late) as waiting:
            assert waiting.run("print(1)", env="python", session="b").stdout == "1\n"
        client.kill_all()


def own_descendants(it: Supervisor) -> set[int]:
    """Descendants of the same user, which count."""
    found = {it.pid}
    for pid in it.descendants():
        with suppress(FileNotFoundError):
            if Path(f"/proc/{pid}").stat().st_uid == os.geteuid():
                found.add(pid)
    return found


@pytest.mark.skipif(os.geteuid() == 0, reason="not here: the kernel counts no processes of root's")
def test_live_sessions_go_on_where_no_process_can_start(it: Supervisor) -> None:
    with it.client() as client:
        client.run("x = 41", env="python", session="a")
        with limited(own_descendants(it), resource.RLIMIT_NPROC, 1):
            assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
            for env, code in (("python", "1"), ("bash", "echo 1")):
                with pytest.raises(StartFailedError, match="ulimit -u"):
                    client.run(code, env=env)
            (row,) = client.sessions()
            assert row.name == "a"
        assert client.run("echo 1", env="bash").stdout == "1\n"
        assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
        client.kill_all()
