"""Presets made of the interpreters that a host has, here mostly made-up ones."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from nsmd.environments.host_presets import HostEnvironments, find_environments
from nsmd.jail import interpreters
from nsmd.model.settings import EnvironmentSettings, Settings
from nsmd.model.values import Environment, ReadOnlyBind

SYSTEM = "/usr/local/bin:/usr/bin:/bin"


class Host:
    """A directory of programs that answer like interpreters."""

    def __init__(self, base: Path) -> None:
        self.home = base / "home"
        self.home.mkdir()
        self.base = base

    def program(self, path: str, script: str) -> Path:
        """An executable shell script; marks that it was run."""
        file = self.base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.base}/ran\n{script}\n')
        file.chmod(0o755)
        return file

    def answering(self, path: str, answer: object) -> Path:
        """Make an interpreter that prints a value as JSON, whatever it is asked."""
        return self.program(path, f"printf '%s\\n' '{json.dumps(answer)}'")

    def python(
        self, prefix: str, version: tuple[int, int, int] = (3, 12, 1), venv_of: str | None = None
    ) -> Path:
        """A Python that lives in a prefix."""
        base = self.base / (venv_of or prefix)
        path = f"{prefix}/bin/python3"
        return self.answering(
            path,
            {
                "version": version,
                "prefix": str(self.base / prefix),
                "base_prefix": str(base),
                "executable": str(self.base / path),
                "base_executable": str(base / "bin/python3"),
            },
        )

    def node(self, prefix: str, version: str = "20.11.0") -> Path:
        """A Node that lives in a prefix."""
        path = f"{prefix}/bin/node"
        return self.answering(path, [str(self.base / path), version])

    def ran(self) -> str:
        """Return the programs that were run, with their arguments."""
        file = self.base / "ran"
        return file.read_text() if file.exists() else ""

    def find(
        self,
        *folders: str,
        settings: Settings | None = None,
        system: bool = False,
        unreadable: Callable[[str], str | None] = lambda _: None,
    ) -> dict[str, Environment]:
        """Environments by name, searched for in those directories."""
        search_path = ":".join([str(self.base / f) for f in folders] + [SYSTEM] * system)
        found = find_environments(
            settings or Settings(), search_path, home=str(self.home), unreadable=unreadable
        )
        return {environment.name: environment for environment in found}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def binds(environment: Environment) -> list[str]:
    assert all(bind.source == bind.target for bind in environment.binds)
    return [bind.target for bind in environment.binds]


def configured(name: str, path: Path) -> Settings:
    entry = EnvironmentSettings(preset="python", interpreter=str(path))
    return Settings(environments={name: entry})


def test_a_python_outside_usr_brings_its_prefix_and_nothing_else(host: Host) -> None:
    host.python("home/.pyenv/versions/3.12.1")
    python = host.find("home/.pyenv/versions/3.12.1/bin")["python"]
    prefix = host.home / ".pyenv/versions/3.12.1"
    assert python.problem is None
    assert python.program == python.agent_python == str(prefix / "bin/python3")
    assert python.binds == (ReadOnlyBind(source=str(prefix), target=str(prefix)),)
    assert python.path == f"{prefix}/bin:{SYSTEM}:/run/nsm/bin"
    assert python.description == "Python 3.12.1"
    assert python.source == "preset"


def test_a_virtual_environment_on_path_is_not_taken_but_its_base(host: Host) -> None:
    base = host.python("opt/python")
    host.python("home/nsm/.venv", venv_of="opt/python")
    python = host.find("home/nsm/.venv/bin")["python"]
    assert python.program == str(base)
    assert binds(python) == [str(host.base / "opt/python")]


def test_a_program_that_others_could_have_put_there_is_not_run(host: Host) -> None:
    evil = host.python("evil")
    good = host.python("good")
    evil.parent.chmod(0o777)
    assert host.find("evil/bin", "good/bin")["python"].program == str(good)
    assert "evil" not in host.ran()
    problem = host.find("evil/bin")["python"].problem
    assert problem is not None
    assert f"{evil} is not run: {evil.parent} is writable by everyone" in problem


def test_a_shim_that_leads_to_what_others_can_change_is_refused(host: Host) -> None:
    real = host.python("shared")
    real.parent.chmod(0o777)
    host.program("shims/python3", f'exec {real} "$@"')
    problem = host.find("shims")["python"].problem
    assert problem is not None
    assert "is writable by everyone" in problem


def test_a_prefix_that_would_show_the_home_directory_is_refused(host: Host) -> None:
    host.python("home/.local")
    problem = host.find("home/.local/bin")["python"].problem
    assert problem is not None
    assert ".local/share/keyrings" in problem
    host.python("home")
    assert "is your home directory" in (host.find("home/bin")["python"].problem or "")


def test_an_interpreter_that_is_too_old_is_passed_over(host: Host) -> None:
    host.python("old", version=(3, 8, 18))
    new = host.python("new", version=(3, 9, 0))
    assert host.find("old/bin", "new/bin")["python"].program == str(new)
    assert "is Python 3.8.18, 3.9 is needed" in (host.find("old/bin")["python"].problem or "")
    host.node("oldnode", "16.20.0")
    assert "Node.js 16.20.0, 18 is needed" in (host.find("oldnode/bin")["node"].problem or "")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo no such version >&2; exit 1", "does not work: no such version"),
        ("echo '[1, 2]'", "answered"),
        ("echo nonsense", "answered"),
        ("exit 0", "answered"),
        ("kill -SEGV $$", "does not work: exit code -11"),
    ],
)
def test_an_interpreter_that_answers_wrong_is_passed_over(
    script: str, why: str, host: Host
) -> None:
    bad = host.program("bad/python3", script)
    good = host.python("good")
    assert host.find("bad", "good/bin")["python"].program == str(good)
    problem = host.find("bad")["python"].problem
    assert problem is not None
    assert f"{bad} {why}" in problem


@pytest.mark.parametrize("name", ["KILL", "TERM"])
def test_a_killed_interpreter_is_no_reason_to_take_another(name: str, host: Host) -> None:
    host.python("good")
    bad = host.program("bad/python3", f"kill -{name} $$")
    problem = host.find("bad", "good/bin")["python"].problem
    assert problem == f"{bad} was ended by SIG{name} while nsm asked it. The next call asks again"


NO_PROCESSES = """
import encodings.ascii, os, resource  # in a directory that is closed to others, perhaps
from nsmd.environments.host_presets import find_environments
from nsmd.model.settings import Settings
if os.geteuid() == 0:
    os.setuid(65534)  # root may have more
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
for each in find_environments(Settings(), "/usr/bin", home="/nonexistent"):
    print(each.name, each.problem)
"""


def test_a_user_who_is_out_of_processes_is_told_so() -> None:
    """Threads count, too."""
    done = subprocess.run(
        [sys.executable, "-c", NO_PROCESSES], capture_output=True, text=True, check=True
    )
    told = "cannot be executed: Resource temporarily unavailable. The next call asks again"
    python, bash, *_ = done.stdout.splitlines()
    assert python == f"python /usr/bin/python3 {told}"
    assert bash == f"bash /usr/bin/bash {told}"


def test_an_interpreter_that_hangs_is_ended_with_its_children(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreters, "ASK_TIMEOUT_S", 0.3)
    fifo = host.base / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    host.program("bad/python3", f"(exec 3<>{fifo}; read x <&3) & wait")
    problem = host.find("bad")["python"].problem
    assert problem is not None
    assert problem.endswith("did not answer in 0.3 s. The next call asks again")
    try:
        assert select.select([reader], [], [], 60)[0], "its child holds the FIFO open"
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_relative_entries_of_path_are_never_searched(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.python("here")
    monkeypatch.chdir(host.base / "here/bin")
    found = find_environments(Settings(), ".::bin", home=str(host.home))
    assert found[0].problem is not None
    assert host.ran() == ""


def test_programs_see_nothing_of_our_environment(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSM_SECRET", "canary")
    real = host.python("real")
    host.program("shims/python3", f'/usr/bin/env > {host.base}/seen; exec {real} "$@"')
    assert host.find("shims")["python"].problem is None
    seen = (host.base / "seen").read_text()
    assert "canary" not in seen
    assert f"HOME={host.home}" in seen


def test_a_configured_interpreter_that_does_not_work_is_not_replaced(host: Host) -> None:
    host.python("on-path")
    settings = configured("python", host.base / "missing/python3")
    problem = host.find("on-path/bin", settings=settings)["python"].problem
    assert problem is not None
    assert problem.startswith("the configured interpreter ")
    assert "No such file" in problem


def test_an_interpreter_that_jails_cannot_read_is_passed_over(host: Host) -> None:
    closed = host.python("closed")
    opened = host.python("open")

    def unreadable(path: str) -> str | None:
        return "is closed" if path.startswith(str(closed.parent.parent)) else None

    found = host.find("closed/bin", "open/bin", unreadable=unreadable)
    assert found["python"].program == str(opened)


def test_packages_of_a_python_are_known_from_its_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    (folder,) = (tmp_path / "v/lib").glob("python3*/site-packages")
    for name in ("numpy", "_private", "numpy-2.1.dist-info"):
        (folder / name).mkdir()
    for name in ("six.py", "fast.cpython-311-x86_64-linux-gnu.so", "readme.txt"):
        (folder / name).touch()
    program = str(tmp_path / "v/bin/python")
    assert interpreters.ask_python(program, {}, keep_venv=True).packages == ("fast", "numpy", "six")
    base = interpreters.ask_python(program, {}, keep_venv=False).packages
    assert "fast" not in base
    settings = tmp_path / "v/pyvenv.cfg"
    shown = settings.read_text().replace("packages = false", "packages = true")
    settings.write_text(shown)
    both = interpreters.ask_python(program, {}, keep_venv=True).packages
    assert set(both) == {"fast", "numpy", "six", *base}


GOOD = Environment(name="python", interpreter="python", program="/usr/bin/python3")
BAD = Environment(name="node", interpreter="node", problem="it was killed")
MENDED = Environment(name="node", interpreter="node", program="/usr/bin/node")


class LaterHost(HostEnvironments):
    """Environments of a host where the next look finds `there`."""

    def __init__(self) -> None:
        super().__init__(self._look_around, Settings())
        self.there: list[Environment] = [GOOD, BAD]
        self.error: Exception | None = None
        self.may_end = threading.Event()
        self.may_end.set()
        self.looks = 0
        self.changes = 0
        self.changed = self._count

    def _count(self) -> None:
        self.changes += 1

    def _look_around(self, _settings: Settings) -> list[Environment]:
        self.looks += 1
        self.may_end.wait()
        if self.error is not None:
            raise self.error
        return list(self.there)


async def test_an_interpreter_that_failed_is_asked_again() -> None:
    host = LaterHost()
    await host.begin()
    await host.search_again()
    assert (host.looks, host.changes) == (2, 0)
    host.there = [GOOD, MENDED]
    await host.search_again()
    assert (host.looks, host.changes, host.found) == (3, 1, [GOOD, MENDED])
    await host.search_again()
    assert host.looks == 3, "all can be used"


async def test_a_look_that_is_overtaken_changes_nothing() -> None:
    host = LaterHost()
    await host.begin()
    host.there = [GOOD, MENDED]
    host.may_end.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.search_again)
        await trio.testing.wait_all_tasks_blocked()
        host.put(Settings(), [GOOD])
        host.may_end.set()
    assert (host.found, host.changes) == ([GOOD], 1)


async def test_without_room_for_a_thread_the_last_environments_stay() -> None:
    host = LaterHost()
    await host.begin()
    host.error = RuntimeError("can't start new thread")  # as threading says it
    await host.search_again()
    assert host.found == [GOOD, BAD]
