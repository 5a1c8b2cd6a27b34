"""Hostile models and faults that every adapter has to take, as tests that its file inherits.

A subclass in `tests/integrations` says how its framework makes a sandbox, runs a command in it and
closes it; these tests then run with the framework's real package.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import host_attacks
import nsm
from e2e_support import end_supervisor, supervisor, variables_for
from nsm.wire.errors import UnknownSessionError

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

HUGE_MIB = 48
ENDS = "until ! kill -0 $(cat pid) 2>/dev/null; do sleep 0.05; done; echo ended"
"""A command that ends once that of the file `pid` has."""


@contextmanager
def own_supervisor(monkeypatch: pytest.MonkeyPatch, config: str = "") -> Generator[Supervisor]:
    """A supervisor for a test that kills it; the one after it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        for name, value in variables_for(Path(path)).items():
            monkeypatch.setenv(name, value)
        with supervisor(Path(path), config=config, keep=True) as it:
            yield it
        end_supervisor(it.socket)


def kill(it: Supervisor) -> None:
    it.process.kill()
    it.process.wait()


class AdapterFaults:
    """Tests of faults. A subclass has `open`, `run`, `run_for` and `close`.

    Attributes:
        owner: the framework, as the label of its sessions names it.
        refusal: error that the framework gets where there is no supervisor, or no sandbox.
        at_once: commands that run together.
        slow: a command that lasts until it is stopped, and writes the file `pid`.
    """

    owner: ClassVar[str]
    refusal: ClassVar[type[Exception]] = nsm.NsmError
    at_once: ClassVar[int] = 100
    slow: ClassVar[str] = "sleep 1000 & echo $! >pid; wait"

    def open(self, **settings: Any) -> Any:
        """Make a sandbox with these settings of the adapter."""
        raise NotImplementedError

    def run(self, box: Any, command: str) -> str:
        """Run a command, and return its standard output."""
        raise NotImplementedError

    def run_beside(self, box: Any, command: str) -> str:
        """Run a command while another one runs."""
        return self.run(box, command)

    def run_for(self, box: Any, command: str, seconds: float) -> None:
        """Run a command that takes longer than that, so that the framework stops it."""
        raise NotImplementedError

    def close(self, box: Any) -> None:
        """End a sandbox."""
        raise NotImplementedError

    def attack(self, box: Any, target: host_attacks.Target) -> str:
        """Run an attack in a sandbox; return what it prints."""
        return self.run(box, shlex.join(target.argv))

    def attack_locally(self, target: host_attacks.Target) -> str:
        """Run it without one: in the framework's own local executor, if there is one."""
        return subprocess.run(target.argv, capture_output=True, text=True, check=True).stdout

    def rows(self) -> dict[str, nsm.SessionRow]:
        """The framework's sessions by their id; a file of tests may have one of its own."""
        with nsm.Client() as client:
            rows = client.sessions()
        return {row.id: row for row in rows if row.labels.get("owner") == self.owner}

    def test_a_hostile_model_reaches_nothing(self, shared: Supervisor, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        box = self.open()
        with host_attacks.target(tmp_path) as target:
            theirs, ours = self.attack_locally(target), self.attack(box, target)
        self.close(box)
        assert host_attacks.gained(theirs) == host_attacks.ALL
        assert host_attacks.gained(ours) == set()

    def test_many_at_once(self, shared: Supervisor) -> None:
        box = self.open()
        with ThreadPoolExecutor(self.at_once) as pool:
            commands = [f"echo {number}" for number in range(self.at_once)]
            outputs = list(pool.map(partial(self.run, box), commands))
        assert outputs == [f"{number}\n" for number in range(self.at_once)]
        self.close(box)

    def test_binary_output_and_a_huge_file(self, shared: Supervisor) -> None:
        box = self.open()
        assert self.run(box, r"printf 'a\377b\n'").replace("\\xff", "\ufffd") == "a\ufffdb\n"
        size = HUGE_MIB * 1024 * 1024
        assert self.run(box, f"head -c {size} /dev/urandom >huge; wc -c <huge") == f"{size}\n"
        self.close(box)

    def test_a_time_limit_ends_what_was_started(self, shared: Supervisor) -> None:
        box = self.open()
        self.run_for(box, self.slow, 1)
        assert self.run(box, ENDS) == "ended\n"
        self.close(box)

    def test_labels_and_closing_twice(self, shared: Supervisor) -> None:
        before = set(self.rows())
        box = self.open()
        self.run(box, "true")
        (row,) = (row for id_, row in self.rows().items() if id_ not in before)
        assert row.labels["pid"] == str(os.getpid())
        self.close(box)
        self.close(box)
        assert row.id not in self.rows()

    def test_one_that_nobody_closes(self, shared: Supervisor) -> None:
        """The session ends with the object, or by its idle time at the latest."""
        before = set(self.rows())
        box = self.open(idle_s=1)
        self.run(box, "true")
        (session,) = set(self.rows()) - before
        del box
        gc.collect()
        with nsm.Client() as client, suppress(UnknownSessionError):
            client.logs(session, follow=True, on_entry=lambda _: None)
        assert session not in self.rows()

    def test_without_a_supervisor(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("NSM_SOCKET", str(tmp_path / "file" / "control.sock"))
        with pytest.raises((self.refusal, OSError)):
            self.run(self.open(), "true")

    def test_a_supervisor_that_is_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Killed in the middle of a command, which goes on; the next one starts a supervisor."""
        with own_supervisor(monkeypatch) as it, ThreadPoolExecutor(1) as pool:
            box = self.open()
            self.run(box, "echo kept >f")
            slow = "touch begun; until [ -e go ]; do sleep 0.05; done; echo after"
            running = pool.submit(self.run, box, slow)
            self.run_beside(box, "until [ -e begun ]; do sleep 0.05; done")
            kill(it)
            assert self.run_beside(box, "touch go; cat f") == "kept\n"
            assert running.result() == "after\n"
            self.close(box)
            assert not self.rows()


class AsyncFaults(AdapterFaults):
    """Tests of a framework whose commands are awaited. A subclass has `arun` in place of `run`."""

    async def arun(self, box: Any, command: str) -> str:
        """Run a command, and return its standard output."""
        raise NotImplementedError

    def run(self, box: Any, command: str) -> str:
        return asyncio.run(self.arun(box, command))

    def test_a_cancelled_command_is_stopped(self, shared: Supervisor) -> None:
        box = self.open()

        async def main() -> None:
            task = asyncio.create_task(self.arun(box, "echo $$ >pid; exec sleep 1000"))
            await self.arun(box, "until [ -s pid ]; do sleep 0.05; done")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await self.arun(box, ENDS) == "ended\n"

        asyncio.run(main())
        self.close(box)
