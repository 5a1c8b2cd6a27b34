"""Definitions: a file as a program or why not, a directory while it changes, and their report."""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import sys
import threading
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from definition_files import bound, definition, executable, fifo, link_to
from nsmd.app import daemon, main
from nsmd.bridge import definitions
from nsmd.bridge.definitions import (
    MAX_DEFINITIONS,
    MAX_FILE_BYTES,
    MAX_FRONT_MATTER_CHARACTERS,
    DefinitionError,
    DefinitionsIndex,
    DefinitionsScan,
    parse,
    read_definition,
    read_directory,
    render,
    unique,
)
from nsmd.bridge.programs import Problem, Program
from nsmd.host import source_watcher
from nsmd.host.paths import Trail, trusted_owners
from nsmd.host.source_watcher import open_source_watcher
from nsmd.model.settings import BridgeSettings, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from nsmd.app.startup import Startup

LS = shutil.which("ls") or "/bin/ls"
HEAD = ("---", "name: deploy", "description: Deploys it", f"command: {LS}")


def read(path: Path, home: Path | str = "/nonexistent") -> Program | Problem:
    return read_definition(str(path), Trail(trusted_owners()), str(home))


def of_lines(folder: Path, *lines: str, home: Path | str = "/nonexistent") -> Program | Problem:
    path = folder / "deploy.md"
    path.write_text("\n".join([*lines, "---", "# Deploy", ""]))
    return read(path, home)


def problem(found: Program | Problem) -> tuple[int | None, str]:
    assert isinstance(found, Problem), found
    return found.line, found.reason


def test_every_key_of_a_definition_is_read(tmp_path: Path) -> None:
    home = tmp_path / "home user"
    executable(home / "bin/deploy")
    (home / "src").mkdir()
    found = of_lines(
        tmp_path,
        "---",
        "# who wrote this",
        "name: deploy_prod-2",
        "description: |",
        "  Deploys what is on main,",
        "  which takes long.",
        "command: ~/bin/deploy",
        "timeout_seconds: 600.5",
        "cwd: ~/src",
        "env: [LANG, DEPLOY_TOKEN, LANG]",
        "max_args: 2",
        "allow_options: true",
        home=home,
    )
    assert found == Program(
        name="deploy_prod-2",
        description="Deploys what is on main, which takes long.",
        command=f"{home}/bin/deploy",
        documentation="# Deploy",
        source=str(tmp_path / "deploy.md"),
        timeout_s=600.5,
        cwd=f"{home}/src",
        env=("LANG", "DEPLOY_TOKEN", "LANG"),
        max_args=2,
        allow_options=True,
        line=3,
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("name: 7", "name is 7, expected 1 to 64 lower-case letters"),
        ("name: 7b_x-", ""),
        ("name: Deploy", "expected 1 to 64"),
        ("name: -x", "expected 1 to 64"),
        ("name: ../x", "expected 1 to 64"),
        ("name: d\u00e9ploy", "expected 1 to 64"),
        ("name: " + "a" * 64, ""),
        ("name: " + "a" * 65, "expected 1 to 64"),
        (f"name: 0x{'f' * 8000}", "name is a number of 32000 bits, expected 1 to 64"),
        ('name: "deploy\\n"', ""),
        ('name: "dep\\nloy"', "name is 'dep\\nloy', expected 1 to 64"),
        ('name: "a\\0"', "name is 'a\\x00', expected 1 to 64"),
        ("description: ' '", "expected text that is not empty"),
        ('description: "\\e[31mred"', "expected text without control characters"),
        ('description: "\\ud800"', "expected text without control characters"),
        ('description: "a\\u2028b"', ""),
        ("description: " + "x" * 501, "expected at most 500 characters"),
        ("description: \U0001f468\u200d\U0001f469 \u00a0ok", ""),
        ("command: bin/ls", "command is 'bin/ls', expected an absolute path"),
        ("command: $HOME/ls", "command is '$HOME/ls', expected an absolute path"),
        ("command: /usr/../bin/ls", "command is '/usr/../bin/ls', expected a path without `..`"),
        ("command: /bin/..", "expected a path without `..`"),
        ("command: /bin/a..b", "expected a path without `..`"),
        ("command: ~root/ls", "expected an absolute path, or `~/...`"),
        ('command: "~\\u200b/ls"', "expected an absolute path, or `~/...`"),
        ("command: '~'", "`command`: {home} is not a file"),
        ('command: "/bin/ls\\0x"', "expected text without control characters"),
        ('command: "/bin/\\udc80"', "expected text without control characters"),
        ("command: /" + "x" * 5000, "File name too long"),
        ("command: /bin/ls -l", "`command`: /bin/ls -l: No such file or directory"),
        ("command: /etc/passwd", "`command`: /etc/passwd is not executable"),
        ("command: /dev/null", "`command`: /dev/null is writable by everyone"),
        ("timeout_seconds: '7'", "expected a number of seconds"),
        ("timeout_seconds: true", "expected a number of seconds"),
        ("timeout_seconds: 0", "expected a number of seconds, more than 0 and at most 86400"),
        ("timeout_seconds: 86401", "expected a number of seconds, more than 0 and at most 86400"),
        ("timeout_seconds: .inf", "timeout_seconds is inf, expected a number"),
        ("timeout_seconds: " + "9" * 400, "expected a number of seconds"),
        ("timeout_seconds: 0.5", ""),
        ("cwd: src", "cwd is 'src', expected an absolute path"),
        ("cwd: /no/such", "`cwd` is /no/such, which is not a directory"),
        ("cwd: /etc", ""),
        ("env: LANG", "env is 'LANG', expected a list of at most 64 names"),
        ("env: [7]", "env[0] is 7, expected the name of a variable"),
        ("env: [A=b]", "env[0] is 'A=b', expected the name of a variable"),
        ('env: ["A\\0"]', "expected the name of a variable"),
        (f"env: [{'V, ' * 64}V]", "expected a list of at most 64 names"),
        ("env: []", ""),
        ("env: [[A]]", "lists and keys within these are not taken"),
        ("env: {A: b}", "env is {{'A': 'b'}}, expected a list"),
        ("max_args: true", "expected a whole number from 0 to 1000"),
        ("max_args: 1001", "max_args is 1001, expected a whole number from 0 to 1000"),
        ("max_args: 0", ""),
        ("allow_options: 'true'", "expected true or false"),
        ("timeout: 5", "`timeout` is not known; there are `name`, `description`,"),
    ],
)
def test_each_key_is_taken_or_refused_with_its_line(line: str, why: str, tmp_path: Path) -> None:
    """Alone or in place of the usual line of that key; the line at fault is told."""
    key = line.partition(":")[0]
    others = [each for each in HEAD if not each.startswith(f"{key}:")]
    found = of_lines(tmp_path, *others, line, home=tmp_path)
    if not why:
        assert isinstance(found, Program)
        return
    at, reason = problem(found)
    assert why.format(home=tmp_path) in reason
    assert at == len(others) + 1


@pytest.mark.parametrize("key", ["name", "description", "command"])
def test_a_definition_needs_these_keys(key: str, tmp_path: Path) -> None:
    lines = [each for each in HEAD if not each.startswith(f"{key}:")]
    assert problem(of_lines(tmp_path, *lines))[0] == 1
    assert problem(of_lines(tmp_path, *lines))[1].startswith(f"{key} is missing, expected")


# Files that are none.


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def open_to_all(path: Path) -> None:
    path.write_text("\n".join([*HEAD, "---"]))
    path.chmod(0o666)


NO_FILES: list[tuple[Callable[[Path], None], str]] = [
    (fifo, "it is not a file"),
    (bound, "it is not a file"),
    (Path.mkdir, "it is not a file"),
    (link_to("/dev/zero"), "/dev/zero is writable by everyone"),
    (link_to("/"), "it is not a file"),
    (link_to("nowhere"), "it is a link to nothing"),
    (link_to("deploy.md"), "Too many levels of symbolic links"),
    (huge, "it is larger than 256 KiB"),
    (open_to_all, "{path} is writable by everyone"),
]


@pytest.mark.parametrize(("make", "why"), NO_FILES)
def test_only_a_file_of_the_users_is_a_definition(
    make: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "deploy.md"
    make(path)
    before = os.listdir("/proc/self/fd")
    assert problem(read(path)) == (None, why.format(path=path))
    assert os.listdir("/proc/self/fd") == before


def test_a_file_as_large_as_it_may_be(tmp_path: Path) -> None:
    path = definition(tmp_path, "deploy", LS)
    size = path.stat().st_size
    with path.open("a") as file:
        file.write("x" * (MAX_FILE_BYTES - size))
    found = read(path)
    assert isinstance(found, Program)
    with path.open("a") as file:
        file.write("x")
    assert problem(read(path)) == (None, "it is larger than 256 KiB")


def changing(monkeypatch: pytest.MonkeyPatch, path: Path, texts: list[str]) -> None:
    """Have the file get each of these as soon as one was read."""
    state = definitions.state_of
    calls = 0

    def look(fd: int) -> tuple[int, int, int]:
        nonlocal calls
        calls += 1
        if calls % 2 == 0 and texts:
            path.write_text(texts.pop(0))
        return state(fd)

    monkeypatch.setattr(definitions, "state_of", look)


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = definition(tmp_path, "deploy", LS)
    changing(monkeypatch, path, [path.read_text().replace("command: /", "command: /no/")])
    assert "`command`: /no" in problem(read(path))[1]


def test_a_file_that_never_stops_changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = definition(tmp_path, "deploy", LS)
    text = path.read_text()
    changing(monkeypatch, path, [text + "x" * n for n in range(1, 99)])
    line, reason = problem(read(path))
    assert line is None
    assert reason.startswith("it changes while it is read")


def test_a_half_written_front_matter_is_none(tmp_path: Path) -> None:
    """Wherever a writer has come to, what is there is refused or means the same: the second line
    of hyphens comes last."""
    path = definition(tmp_path, "deploy", LS, "max_args: 10", "allow_options: true", body="x")
    whole, text = read(path), path.read_text()
    end = text.index("\n---", 1) + len("\n---")
    for length in range(len(text)):
        path.write_text(text[:length])
        found = read(path)
        if length < end:
            assert isinstance(found, Problem)
        else:
            assert isinstance(found, Program)
            assert isinstance(whole, Program)
            assert (found.command, found.max_args) == (whole.command, whole.max_args)


def test_definitions_that_share_a_name_are_all_refused(tmp_path: Path) -> None:
    found = [read(definition(tmp_path / folder, name, LS)) for folder, name in PLACES]
    programs, problems = unique(found)
    assert [each.name for each in programs] == ["backup"]
    assert {(each.source, each.line, each.name) for each in problems} == {
        (f"{tmp_path}/a/deploy.md", 2, "deploy"),
        (f"{tmp_path}/c/deploy.md", 2, "deploy"),
    }
    assert all("neither is used" in each.reason for each in problems)


PLACES = [("a", "deploy"), ("b", "backup"), ("c", "deploy")]


def refusal(text: str | bytes) -> tuple[int | None, str]:
    with pytest.raises(DefinitionError) as caught:
        parse(text if isinstance(text, bytes) else text.encode())
    return caught.value.line, caught.value.reason


def front(*lines: str) -> str:
    return "\n".join(["---", *lines, "---", "body", ""])


def values(*lines: str) -> dict[str, object]:
    return parse(front(*lines).encode())[0]


def test_front_matter_is_read_with_its_lines() -> None:
    found, lines, body = parse(
        b"---\n# how we deploy\nname: deploy\ntimeout_seconds: 600\nratio: 2.5\n"
        b"env: [A, B]\nlist:\n- x\n- y\nallow_options: true\n"
        b"description: >\n  Deploys\n  it.\nempty:\n---\n\n# Deploy\n\n---\nText\n\n"
    )
    assert found == {
        "name": "deploy",
        "timeout_seconds": 600,
        "ratio": 2.5,
        "env": ["A", "B"],
        "list": ["x", "y"],
        "allow_options": True,
        "description": "Deploys it.\n",
        "empty": None,
    }
    assert list(lines.values()) == [3, 4, 5, 6, 7, 10, 11, 14]
    assert body == "# Deploy\n\n---\nText"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_ends_of_lines_and_byte_order_marks_are_nobodys_business(end: str, mark: str) -> None:
    text = (mark + front("name: x", "n: 1")).replace("\n", end)
    assert parse(text.encode()) == ({"name": "x", "n": 1}, {"name": 2, "n": 3}, "body")


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "it does not begin with front matter"),
        ("# Deploy\n", 1, "it does not begin with front matter"),
        ("\n---\nname: x\n---\n", 1, "it does not begin with front matter"),
        ("----\nname: x\n----\n", 1, "it does not begin with front matter"),
        ("---\nname: x\n", 1, "its front matter has no end"),
        ("---\n---\n", 1, "its front matter is empty"),
    ],
)
def test_a_definition_begins_with_front_matter(text: str, line: int, why: str) -> None:
    at, reason = refusal(text)
    assert at == line
    assert reason.startswith(why)


@pytest.mark.parametrize(
    ("lines", "line", "why"),
    [
        (["a: !!python/object/apply:os.system [id]"], 2, "tags"),
        (["x: y", "a: !ruby/object:X {}"], 3, "tags"),
        (["!!map {a: b}"], 2, "tags"),
        (["a:", "- b", "- !x c"], 4, "tags"),
        (["a: &x b"], 2, "anchors"),
        (["a: &x [b]"], 2, "anchors"),
        (["a: *x"], 2, "aliases"),
        (["a: [*x]"], 2, "aliases"),
        (["a: [[b]]"], 2, "lists and keys within these"),
        (["a: [{b: c}]"], 2, "lists and keys within these"),
        (["? [a]", ": b"], 2, "a key must be one word"),
        (["just text"], 2, "its front matter must be keys"),
        (["a: b", "c: d", "a: e"], 4, "`a` is there twice, first in line 2"),
        (["a: b: c"], 2, "no valid YAML"),
        (["a: b", "\tc: d"], 3, "no valid YAML"),
        (["a: 'b"], 3, "no valid YAML"),
        (["a: @b"], 2, "no valid YAML"),
        (["a: b", "...", "c: d"], 4, "no valid YAML"),
        (["%YAML 1.1", "--- "], 2, "directives"),
        (["a: " + "9" * 5000], None, "no valid YAML"),
        (["a: 2026-13-45"], None, "no valid YAML"),
    ],
)
def test_yaml_beyond_keys_and_lists_is_refused_with_its_line(
    lines: list[str], line: int | None, why: str
) -> None:
    at, reason = refusal(front(*lines))
    assert why in reason
    assert at == line


BOMB = [
    "a: &a [x,x,x,x,x,x,x,x,x]",
    *(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
]


@pytest.mark.parametrize(
    "lines",
    [
        BOMB,
        ["[" * 16_000],
        ["? " * 8_000],
        [" " * n + "a:" for n in range(150)],
        ["a: " + "!" * 16_000],
        ["a: '" + "''" * 8_000],
        ['a: "' + "\\" * 15_999],
        ["a: " + "|" * 16_000],
    ],
    ids=lambda lines: lines[0][:12],
)
def test_bombs_are_refused_with_little_work(lines: list[str]) -> None:
    """Counted in the parser's steps, since a clock would say something about the machine."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with pytest.raises(DefinitionError):
            parse(front(*lines).encode())
    finally:
        sys.setprofile(before)
    assert steps < 2_000_000


def test_a_large_front_matter_is_not_parsed() -> None:
    fits = ["a: b", "#" * (MAX_FRONT_MATTER_CHARACTERS - len("\na: b\n\n"))]
    assert values(*fits) == {"a": "b"}
    line, reason = refusal(front(*fits, "x: y"))
    assert (line, "at most 16384 are read" in reason) == (1, True)


@pytest.mark.parametrize(
    ("data", "line", "why"),
    [
        (b"\xff\xfe-\0-\0-\0\n\0", 1, "it is not UTF-8 (byte 0xff)"),
        (b"---\nname: \xe9\n---\n", 2, "it is not UTF-8 (byte 0xe9)"),
        (b"---\nname: \xed\xa0\x80\n---\n", 2, "it is not UTF-8 (byte 0xed)"),
        (b"---\nname: a\0b\n---\n", 2, "control character U+0000"),
        (b"---\nname: a\n---\nx\x1b[31m\n", 4, "control character U+001B"),
        ("---\nname: a\u2028b: c\n---\n".encode(), 2, "control character U+2028"),
        ("---\nname: \ufffe\n---\n".encode(), None, "no valid YAML: unacceptable character"),
    ],
)
def test_a_file_that_is_no_text_is_refused(data: bytes, line: int | None, why: str) -> None:
    at, reason = refusal(data)
    assert reason.startswith(why)
    assert at == line


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_anything_is_values_or_a_reason(text: str) -> None:
    with suppress(DefinitionError):
        parse(front(text).encode())


TIMEOUT_S = 120


class Watched:
    """An index of definitions, and who waits for its changes."""

    def __init__(self, index: DefinitionsIndex) -> None:
        self.index = index
        self.changes = 0
        self._changed = trio.Event()
        index.subscribe(self._take)

    def _take(self) -> None:
        self.changes += 1
        self._changed.set()

    @property
    def names(self) -> list[str]:
        return list(self.index.programs)

    @property
    def reasons(self) -> list[str]:
        return [problem.reason for problem in self.index.problems]

    async def until(self, right: Callable[[], bool]) -> None:
        with trio.fail_after(TIMEOUT_S):
            while not right():
                self._changed = trio.Event()
                await self._changed.wait()


@asynccontextmanager
async def watching(directory: Path) -> AsyncGenerator[Watched]:
    async with open_source_watcher() as it:
        index = DefinitionsIndex(str(directory), it)
        await index.begin()
        yield Watched(index)
        index.end()


def test_only_definitions_of_a_directory_are_read(tmp_path: Path) -> None:
    for name in ("b", "a"):
        definition(tmp_path, name, LS)
    for name in (".hidden.md", ".#lock.md", "notes.txt", "c.md~", "d.MD", "md"):
        (tmp_path / name).write_text("no definition")
    (tmp_path / ".#a.md").symlink_to("somebody@host.1234")
    (tmp_path / "bad.md").write_text("---\nname: bad\n---\n")
    found = read_directory(str(tmp_path))
    assert list(found.programs) == ["a", "b"]
    (problem,) = found.problems
    assert render(problem) == f"{tmp_path}/bad.md:1: description is missing, expected text"


def test_a_directory_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    assert not read_directory(str(tmp_path / "gone")).problems
    (tmp_path / "file").touch()
    for path, why in ((tmp_path / "file", "Not a directory"), (tmp_path / "open", "is writable")):
        (tmp_path / "open").mkdir(exist_ok=True)
        (tmp_path / "open").chmod(0o777)
        (problem,) = read_directory(str(path)).problems
        assert why in render(problem)
        assert problem.source == str(path)


def test_a_number_of_definitions_is_read_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "MAX_DEFINITIONS", 3)
    for number in range(1000):
        (tmp_path / f"p{number:04}.md").symlink_to("nowhere")
    for number in range(3):
        (tmp_path / f"p{number:04}.md").unlink()
        definition(tmp_path, f"p{number:04}", LS)
    found = read_directory(str(tmp_path))
    assert list(found.programs) == ["p0000", "p0001", "p0002"]
    (problem,) = found.problems
    assert problem.reason == "it has 1000 definitions; those after the first 3 are not read"
    assert MAX_DEFINITIONS == 256


async def test_definitions_come_change_and_go(tmp_path: Path) -> None:
    tools = tmp_path / "config/nsm/tools"
    async with watching(tools) as it:
        assert it.names == []
        definition(tools, "deploy", LS)
        await it.until(lambda: it.names == ["deploy"])
        definition(tools, "backup", LS)
        await it.until(lambda: it.names == ["backup", "deploy"])
        definition(tools, "deploy", LS, "max_args: 3")
        await it.until(lambda: it.index.programs["deploy"].max_args == 3)
        definition(tools, "deploy", LS, "max_args: three")
        await it.until(lambda: it.names == ["backup"])
        assert it.reasons == ["max_args is 'three', expected a whole number from 0 to 1000"]
        (tools / "deploy.md").unlink()
        await it.until(lambda: not it.reasons)
        (tmp_path / "config").rename(tmp_path / "away")
        await it.until(lambda: it.names == [])


async def test_files_that_definitions_name_are_watched(tmp_path: Path) -> None:
    """A command that is made, closed to others, opened to them, removed, or led elsewhere."""
    tools, command = tmp_path / "tools", tmp_path / "bin/deploy"
    definition(tools, "deploy", command, f"cwd: {tmp_path}/work")
    async with watching(tools) as it:
        assert it.reasons == [f"`command`: {command}: No such file or directory"]
        executable(command)
        await it.until(lambda: "which is not a directory" in it.reasons[0])
        (tmp_path / "work").mkdir()
        await it.until(lambda: it.names == ["deploy"])
        command.chmod(0o777)
        await it.until(lambda: it.reasons == [f"`command`: {command} is writable by everyone"])
        command.chmod(0o755)
        await it.until(lambda: it.names == ["deploy"])
        command.chmod(0o644)
        await it.until(lambda: it.names == [])
        command.unlink()
        command.symlink_to("real")
        executable(tmp_path / "bin/real")
        await it.until(lambda: it.names == ["deploy"])
        (tmp_path / "bin/real").unlink()
        await it.until(lambda: it.names == [])


async def test_a_directory_behind_a_link_is_watched(tmp_path: Path) -> None:
    """Links are exchanged the way home-manager exchanges them."""
    for generation in ("one", "two"):
        definition(tmp_path / "store" / generation, generation, LS)
    (tmp_path / "tools").symlink_to("store/one")
    async with watching(tmp_path / "tools") as it:
        assert it.names == ["one"]
        (tmp_path / "next").symlink_to("store/two")
        (tmp_path / "next").rename(tmp_path / "tools")
        await it.until(lambda: it.names == ["two"])


async def test_only_changes_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    definition(tmp_path, "deploy", LS)
    (tmp_path / "bad.md").write_text("bad")
    async with watching(tmp_path) as it:
        (tmp_path / "deploy.md").touch()
        await it.index.read_again()
        await it.index.read_again()
        assert it.changes == 0
        (tmp_path / "worse.md").write_text("worse")
        await it.index.read_again()
        assert it.changes == 1
    told = [record.getMessage().partition(": ")[0] for record in caplog.records]
    assert told == [f"{tmp_path}/bad.md:1", f"{tmp_path}/worse.md:1"]


async def test_a_look_that_hangs_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_watcher, "LOOK_TIMEOUT_S", 0.01)
    goes_on = threading.Event()

    def hang(_: str) -> DefinitionsScan:
        goes_on.wait(TIMEOUT_S)
        return DefinitionsScan()

    monkeypatch.setattr(definitions, "read_directory", hang)
    try:
        async with watching(tmp_path) as it:
            assert it.names == []
            await it.index.read_again()
    finally:
        goes_on.set()


WRONG = "max_args is 'x', expected a whole number from 0 to 1000"
ON, OFF = Settings(bridge=BridgeSettings(enabled=True)), Settings()


def broken(folder: Path, name: str) -> str:
    """A broken definition; returns what is told of it."""
    return f"{definition(folder, name, LS, 'max_args: x')}:5: {WRONG}"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NSM_SOCKET", str(tmp_path / "run/control.sock"))
    # What a supervisor changes of its own process is not to be that of the tests that follow.
    umask, limits = os.umask(0o022), resource.getrlimit(resource.RLIMIT_NOFILE)
    yield tmp_path / "config/nsm/tools"
    os.umask(umask)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def enable(tools: Path) -> None:
    tools.mkdir(parents=True, exist_ok=True)
    (tools.parent / "config.toml").write_text("[bridge]\nenabled = true\n")


def test_programs_and_problems_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert definitions.report(str(tmp_path), OFF, as_json=False) == 0
    none, off = capsys.readouterr().out.splitlines()
    assert none == f"{tmp_path} has no definitions (*.md)"
    assert "`enabled = true` in `[bridge]`" in off
    good = definition(tmp_path, "deploy", LS)
    assert definitions.report(str(tmp_path), ON, as_json=False) == 0
    assert capsys.readouterr() == (f"deploy: {LS} ({good})\n", "")
    told = broken(tmp_path, "bad")
    assert definitions.report(str(tmp_path), ON, as_json=False) == 1
    assert capsys.readouterr() == (f"deploy: {LS} ({good})\n", f"{told}\n")


def test_json_has_programs_and_problems(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enable(tools)
    good = definition(tools, "deploy", LS, "cwd: /etc", "env: [LANG]", "max_args: 1")
    broken(tools, "bad")
    assert main.main(["--check-bridge", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["directory"], told["enabled"]) == (str(tools), True)
    (program,) = told["programs"]
    given = {"cwd": "/etc", "env": ["LANG"], "max_args": 1, "timeout_seconds": 300.0}
    expected = {"name": "deploy", "command": LS, "source": str(good), **given}
    assert {key: program[key] for key in expected} == expected
    (mistake,) = told["problems"]
    assert mistake == {"source": str(tools / "bad.md"), "line": 5, "reason": WRONG, "name": "bad"}


@pytest.mark.parametrize("option", ["--try", None])
def test_a_strict_supervisor_does_not_start_with_a_bad_definition(
    option: str | None, tools: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    enable(tools)
    told = broken(tools, "bad")
    assert main.main(["--strict", *([option] if option else [])]) == main.EXIT_USAGE
    assert told in capfd.readouterr().err


def test_a_supervisor_starts_without_strict_mistake_or_bridge(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `--strict`, without a mistake, and while the bridge is off."""
    started: list[Startup] = []

    async def serve(setup: Startup) -> None:
        started.append(setup)

    monkeypatch.setattr(daemon, "serve", serve)
    enable(tools)
    assert main.main(["--strict"]) == 0
    broken(tools, "bad")
    assert main.main([]) == 0
    (tools.parent / "config.toml").unlink()
    assert main.main(["--strict"]) == 0
    assert len(started) == 3
    enable(tools)
    assert main.main(["--strict"]) == main.EXIT_USAGE
    assert len(started) == 3
