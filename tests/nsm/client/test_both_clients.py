"""Both clients have the same methods, and type checkers find a mistake in each of them."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import nsm
from nsm.client import (
    environments,
    host,
    jobs,
    places,
    sandbox,
    session_files,
)

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = [
    (nsm.Client, nsm.AsyncClient),
    (jobs.Job, jobs.AsyncJob),
    (sandbox.Sandbox, sandbox.AsyncSandbox),
    (session_files.SessionFiles, session_files.AsyncSessionFiles),
    (session_files.ChangeWatch, session_files.AsyncChangeWatch),
    (host.Ports, host.AsyncPorts),
    (host.Secrets, host.AsyncSecrets),
    (host.Bridge, host.AsyncBridge),
    (environments.Builds, environments.AsyncBuilds),
    (host.Boxes, host.AsyncBoxes),
    (
        environments.ProjectEnvironments,
        environments.AsyncProjectEnvironments,
    ),
]

NOT_AWAITED = {"close_in_child", "files", "in_project", "sandbox"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_same_methods_with_the_same_arguments(blocking: type, awaited: type) -> None:
    ours, theirs = public(blocking), public(awaited)
    assert ours - theirs <= {"autostart", "close"}
    assert theirs - ours <= {"aclose", "close_in_child", "wait_lost"}
    for name in ours & theirs:
        one, other = getattr(blocking, name), getattr(awaited, name)
        if not inspect.isfunction(one):
            continue
        assert [*inspect.signature(one).parameters] == [*inspect.signature(other).parameters], name
        assert not inspect.iscoroutinefunction(one)
        assert inspect.iscoroutinefunction(other) == (name not in NOT_AWAITED), name
        assert inspect.getdoc(one), name


def test_help_reads_well() -> None:
    kill: Any = nsm.Client.kill
    job: Any = nsm.AsyncClient.job
    assert str(inspect.signature(kill)) == "(self, targets: 'str | Iterable[str]') -> 'KillReport'"
    assert str(inspect.signature(job)) == "(self, session: 'str', job_id: 'str') -> 'AsyncJob'"
    assert (inspect.getdoc(nsm.Client.run) or "").startswith("Run code and wait for what comes")


WRONG = {
    "ask": "ask('ping')",
    "boxes": "boxes.open(1, profile='p', digest='d', network='off')",
    "bridge": "bridge.run('deploy', 3)",
    "builds": "builds.add(3)",
    "call": "call(1)",
    "carry_out": "carry_out(3)",
    "check": "check('a')",
    "complete": "complete('a', 'x', 'y')",
    "drain": "drain(timeout_s='a')",
    "ended_sessions": "ended_sessions(1)",
    "envs": "envs(preload='yes')",
    "exec": "exec('a', ['ls'], timeout='1')",
    "files": "files('a').read(3)",
    "fork": "fork('a', count='2')",
    "inspect": "inspect(3)",
    "interrupt": "interrupt()",
    "job": "job('a')",
    "jobs": "jobs(3)",
    "kill": "kill(3)",
    "kill_all": "kill_all(3)",
    "kill_idle": "kill_idle('a')",
    "kill_labelled": "kill_labelled(['a'])",
    "logs": "logs('a')",
    "network": "network('a', 'permit')",
    "ping": "ping(1)",
    "pool": "pool(1)",
    "ports": "ports.open('a', '80')",
    "project_environments": "project_environments.use(3)",
    "reload": "reload(force=3)",
    "replay": "replay('a')",
    "result": "result(3)",
    "run": "run('x', env='python', timeout='1')",
    "run_in": "run_in('a', 3)",
    "secrets": "secrets.test(3)",
    "sessions": "sessions(1)",
    "shutdown": "shutdown(1)",
    "status": "status(1)",
    "transcript": "transcript(3)",
    "undo": "undo('a', 'b')",
    "undrain": "undrain(1)",
}
"""A call of each method with one mistake, as a user may make it."""

RIGHT = """\
    result: nsm.RunResult = {wait}client.run("x", env="python", timeout_s=3)
    job: nsm.{kind}Job = {wait}client.exec("a", ["ls"], tty=(24, 80))
    done: nsm.JobResult = {wait}job.collect()
    content: bytes = {wait}client.files("a").read("x", max_bytes=10)
    row: nsm.PortRow = {wait}client.ports.open("a", 80)
    forks: int = len(({wait}client.fork("a", count=2)).forks)
    print(result, done, content, row, forks)
"""


def test_each_method_has_a_mistake() -> None:
    other = {"aclose", "close_in_child", "in_project", "wait_lost"}
    attributes = {"far_socket", "server"}
    assert public(nsm.AsyncClient) - other - attributes - {"sandbox"} == WRONG.keys()


def program() -> str:
    lines = ["import nsm", ""]
    for kind, word, wait in (("", "", ""), ("Async", "async ", "await ")):
        lines += [f"{word}def right{kind}(client: nsm.{kind}Client) -> None:"]
        lines += RIGHT.format(kind=kind, wait=wait).splitlines()
        lines += [f"{word}def wrong{kind}(client: nsm.{kind}Client) -> None:"]
        lines += [f"    {wait}client.{call}  # wrong" for call in WRONG.values()]
    return "\n".join([*lines, ""])


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_checkers_find_each_mistake_and_no_other(tmp_path: Path, checker: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(program())
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    options = {
        "mypy": ["--strict", "--no-error-summary", f"--cache-dir={tmp_path}/cache"],
        "pyright": ["--pythonpath", sys.executable],
    }
    ended = subprocess.run(
        [sys.executable, "-m", checker, *options[checker], path.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line) for line in re.findall(r"program\.py:(\d+):.*error", ended.stdout)}
    wrong = {
        number
        for number, line in enumerate(program().splitlines(), start=1)
        if line.endswith("# wrong")
    }
    assert found == wrong, ended.stdout + ended.stderr


# The current directory as the project, and why it may be none.


def test_a_name_that_is_not_utf_8_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(odd)
    monkeypatch.chdir(os.fsdecode(odd))
    assert places.current_project() is None
    assert "is not UTF-8" in places.why_no_project()
    assert "home directory" not in places.why_no_project()
