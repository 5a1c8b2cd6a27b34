"""Messages about what uv and npm have printed, as they print it, and the jails that they run in."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from nsmd.host.command_monitor import lines_of
from nsmd.jail.user import JailUser
from nsmd.packages import build_jail
from nsmd.packages.build_jail import (
    BuildJail,
    CommandOutput,
    JailOutcome,
    no_answer,
    why_failed,
    without_secrets,
)
from nsmd.packages.locks import LockError, parse
from package_world import installation
from realjail import BWRAP

UV_MISSING = """\
error: No solution found when resolving dependencies
  cause: Because nothere was not found in the package registry and you require nothere, we can \
conclude that your requirements are unsatisfiable.
hint: something long"""

UV_TREE = """\
  \u00d7 No solution found when resolving dependencies:
  ╰─▶ Because demo==1.0 has no usable wheels and you require demo==1.0, we can conclude that your
      requirements are unsatisfiable.
      hint: Wheels are required"""

UV_HEADER = f"""\
error: Failed to build `pyaudio==0.2.14`
  Caused by: The build backend returned an error
  Caused by: Call to `setuptools.build_meta.build_wheel` failed (exit status: 1)
[stderr]
{600 * "w"}
src/pyaudio/device_api.c:9:10: fatal error: portaudio.h: No such file or directory
hint: This error likely indicates that you need to install a library"""

NPM_HEADER = """\
npm error code 1
npm error path /env/node_modules/demo
npm error command failed
npm error ../src/demo.cc:3:10: fatal error: portaudio.h: No such file or directory"""

NPM_MISSING = """\
npm http fetch GET 404 https://npm.test/nothere 1083ms (cache skip)
npm error code E404
npm error 404 Not Found - GET https://npm.test/nothere - Not found
npm error 404
npm error 404  The requested resource 'nothere@*' could not be found or you do not have
npm error 404 Note that you can also install from a
npm error Log files were not written due to the config logs-max=0"""

NPM_CONFLICT = """\
npm error code ERESOLVE
npm error ERESOLVE unable to resolve dependency tree
npm error
npm error While resolving: environment@undefined
npm error Found: react@17.0.2
npm error
npm error Could not resolve dependency:
npm error peer react@"^18.3.1" from react-dom@18.3.1
npm error
npm error Fix the upstream dependency conflict, or retry"""


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        (NPM_MISSING, "Not Found (https://npm.test/nothere)"),
        (
            NPM_CONFLICT,
            (
                "unable to resolve dependency tree Found: react@17.0.2 Could not resolve "
                'dependency: peer react@"^18.3.1" from react-dom@18.3.1'
            ),
        ),
    ],
)
def test_messages_of_npm_are_told_without_its_advice(printed: str, message: str) -> None:
    ran = JailOutcome(status=1, tail=tuple(printed.splitlines()))
    said, _ = why_failed(ran, "npm", (), done="resolved")
    assert said == f"The packages cannot be resolved: {message}"


@pytest.mark.parametrize(
    ("tool", "printed", "message", "hint"),
    [
        ("uv", UV_MISSING, "resolving dependencies: Because nothere was not found", "Check names"),
        ("uv", UV_TREE, "that your requirements are unsatisfiable", "--allow-builds"),
        ("uv", "OSError: [Errno 28] No space left on device", "No space left", "Free some space"),
        ("uv", "", "uv said nothing (exit code 2)", ""),
        ("uv", UV_HEADER, "pyaudio cannot be built: src/pyaudio/device_api.c:9:10: fatal", "/usr"),
        ("npm", NPM_HEADER, ": ../src/demo.cc:3:10: fatal error: portaudio.h", "/usr"),
    ],
)
def test_a_failure_of_a_tool_is_told_with_advice(
    tool: str, printed: str, message: str, hint: str
) -> None:
    ran = JailOutcome(status=2, tail=tuple(printed.splitlines()))
    said, advice = why_failed(ran, tool, (), done="resolved")
    assert said.startswith("The packages cannot be resolved: ")
    assert message in said
    assert "hint" not in said
    assert hint in advice


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("error: Failed to fetch: https://index.test/simple/demo/", True),
        ("npm error code ECONNREFUSED", True),
        ("npm error code E503", True),
        ("error: <urlopen error [Errno 111] Connection refused>", True),
        ("npm error code E404", False),
        ("npm error code ETARGET", False),
        ("error: No solution found when resolving dependencies", False),
    ],
)
def test_the_cache_is_tried_where_an_index_does_not_answer(line: str, *, expected: bool) -> None:
    assert no_answer(JailOutcome(status=1, tail=("first", line))) is expected


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "get https://a.test/x?sig=1)&b http://b.test?c",
            "get https://a.test/x?****)&b http://b.test?****",
        ),
        (
            "http:// http://?a https://a.test? https://b.test",
            "http:// http://?a https://a.test? https://b.test",
        ),
        ("http://a.test/http://b.test?c", "http://a.test/http://b.test?****"),
        ("password pass pass", "**** **** ****"),
    ],
)
def test_queries_and_secrets_are_covered(said: str, shown: str) -> None:
    assert without_secrets(said, ["password", "pass"]) == shown


@pytest.mark.parametrize("piece", ["http://", "https://a?)", "\t", "\x1b]", "\x1b[0", "\0", "\r"])
def test_no_line_keeps_the_supervisor_from_calls_for_long(piece: str) -> None:
    """Code of packages prints what it likes, and the supervisor reads it between calls."""
    line = piece * (80 * 1024 // len(piece))
    began_s = time.thread_time()
    lines_of(without_secrets(line, ["password"]))
    assert time.thread_time() - began_s < 0.15


HASH = f" --hash=sha256:{64 * 'a'}"


@pytest.mark.parametrize("rest", [4000 * " " + "x", 500 * HASH + " x", 4000 * " --hash"])
def test_no_line_of_what_a_build_left_is_read_for_long(rest: str) -> None:
    began_s = time.thread_time()
    with pytest.raises(LockError):
        parse(f"demo==1 ; here{rest}\ndemo==1 ;{rest}")
    assert time.thread_time() - began_s < 0.2


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


@pytest.mark.jail
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
