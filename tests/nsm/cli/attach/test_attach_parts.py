"""The parts of `nsm attach` that need no terminal."""

from __future__ import annotations

import asyncio
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.document import Document

from nsm.cli.attach import program, screen
from nsm.cli.attach.feed import MAX_LINE_CHARS, Excerpt, Feed, OutputExcerpt, OwnExecution
from nsm.cli.attach.program import FileHistory
from nsm.cli.attach.prompt import completions
from nsm.cli.attach.screen import AttachScreen
from nsm.cli.attach.whole_input import check_bash, check_python, with_indent
from nsm.cli.render.results import Folder
from nsm.wire.sessions import Completions
from nsm.wire.transcripts import ExecutionEnd, ExecutionStart, OutputPiece, StreamName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prompt_toolkit.application import Application


def piece(text: str, stream: StreamName = "stdout", skipped: int = 0) -> OutputPiece:
    return OutputPiece("x-1", stream, text, skipped)


def start(number: int = 1, client: str = "claude") -> ExecutionStart:
    return ExecutionStart(f"x-{number}", number, client, "code", 0, 1e9)


def end(number: int = 1) -> ExecutionEnd:
    return ExecutionEnd(
        f"x-{number}", 0, 0.5, False, False, False, "", displays=(), truncated={}, error=None
    )


# Output in short.


def excerpt(pieces: list[OutputPiece], head: int, tail: int) -> tuple[str, list[OutputPiece]]:
    shortened = Excerpt(head, tail)
    shown = [now.text for one in pieces if (now := shortened.take(one)) is not None]
    return "".join(shown), shortened.rest()


@given(st.lists(st.text("abc", max_size=12)), st.integers(0, 20), st.integers(1, 20))
def test_every_character_is_shown_or_counted(texts: list[str], head: int, tail: int) -> None:
    whole = "".join(texts)
    shown, rest = excerpt([piece(text) for text in texts], head, tail)
    ending = "".join(one.text for one in rest)
    assert whole.startswith(shown)
    assert whole.endswith(ending)
    assert len(whole) == len(shown) + len(ending) + sum(one.skipped for one in rest)
    assert len(shown) <= head
    assert len(ending) <= tail


def test_lines_are_shown_when_they_are_whole_and_as_they_stand_then() -> None:
    lines = OutputExcerpt()
    assert lines.take(piece("a\nb")).text == "a\n"
    assert lines.unfinished == "b"
    assert lines.take(piece("c\r\n1 %\r2")).text == "bc\r\n"
    assert lines.unfinished == "2"
    assert lines.take(piece(" %\r")).text == ""
    assert lines.unfinished == "2 %"
    assert lines.take(piece("3 %\nx\ry\n")).text == "3 %\ny\n"
    assert lines.take(piece("rest")).text == ""
    assert lines.take(piece("more", "stderr")).text == ""
    assert lines.rest("x-1") == [piece("rest"), piece("more", "stderr")]
    assert lines.unfinished == ""


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    lines = OutputExcerpt()
    text = "x" * (MAX_LINE_CHARS + 1)
    assert lines.take(piece(text)).text == text
    assert lines.unfinished == ""


# The transcript as it comes.


def test_the_feed_shows_executions_of_others_and_own_ones_that_nobody_watches() -> None:
    stream = io.StringIO()
    feed = Feed(AttachScreen(stream))
    feed.view("x-1", OwnExecution(AttachScreen(stream), Folder(None)))
    feed.take(start())
    feed.miss()
    assert feed.of_others is None
    feed.unview("x-1")
    feed.take(piece("late\n"))
    feed.take(end())
    assert stream.getvalue() == "  late\n[0.50 s]\n"
    feed.take(start(2, "\x1b[2J"))
    feed.miss()
    assert feed.status == r"\x1b[2J's execution 2 is running"
    assert "\x1b" not in stream.getvalue()


# Writing above the prompt.


class FakeApp:
    """Stand-in for an application, as much as a screen needs when none runs."""


def above_a_prompt(write: Callable[[AttachScreen], Awaitable[None]]) -> str:
    stream = io.StringIO()

    async def main() -> None:
        it = AttachScreen(stream)
        it.write("before")
        with it.above(cast("Application[Any]", FakeApp())):
            await write(it)

    asyncio.run(main())
    return stream.getvalue()


def test_text_that_waits_for_the_prompt_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "MAX_PENDING_CHARS", 20)

    async def write(it: AttachScreen) -> None:
        for number in range(10):
            it.write(f"line {number}\n")

    assert above_a_prompt(write) == (
        "before\nline 0\nlin\n[... 50 characters left out ...]\n 8\nline 9\n"
    )


# The line editor.


@pytest.mark.parametrize(
    ("text", "at", "found", "expected"),
    [
        ("mat", 3, Completions(0, 3, ("math", "match"), True), [("math", -3), ("match", -3)]),
        ("a.ma)", 4, Completions(2, 4, ("max",), True), [("max", -2)]),
        ("prnt", 2, Completions(0, 4, ("pront",), True), [("pro", -2)]),
        ("x", 1, Completions(0, 1, ("x\x1b[2J", "x\ny"), True), []),
        ("x", 1, Completions(0, 9, ("xx",), True), []),
        ("x", 1, Completions(-1, 1, ("xx",), True), []),
    ],
)
def test_completions_end_at_the_cursor(
    text: str, at: int, found: Completions, expected: list[tuple[str, int]]
) -> None:
    made = completions(found, Document(text, at))
    assert [(one.text, one.start_position) for one in made] == expected


# What was typed earlier.


def entries(path: Path) -> list[str]:
    return list(FileHistory(str(path)).load_history_strings())


def test_a_history_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history-python"
    first, second = FileHistory(str(path)), FileHistory(str(path))
    first.append_string("one\n  line é\ud800")
    second.append_string("two")
    second.append_string("two")
    first.append_string("one\n  line é\ud800")
    assert entries(path) == ["two", "one\n  line é\ud800"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(path.read_text().splitlines()) == 2


def test_a_damaged_history(tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_bytes(b'"good"\n{\n"half\n\xff\n17\n"last"\n"cut')
    assert entries(path) == ["last", "good"]


def test_a_history_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MAX_ENTRIES", 3)
    path = tmp_path / "h"
    path.write_text("".join(json.dumps(str(n)) + "\n" for n in range(7)))
    assert entries(path) == ["6", "5", "4"]
    assert path.read_text() == '"4"\n"5"\n"6"\n'
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["h"]


def test_a_history_that_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    it = FileHistory(str(tmp_path / "link"))
    it.append_string("x")
    assert it.problem is not None
    assert not (tmp_path / "target").exists()
    there = FileHistory(str(tmp_path))
    assert list(there.load_history_strings()) == []
    assert there.problem is not None


# Checks of whether what was typed is a whole input, and suggestions for the next line.


PYTHON_CASES: dict[str, str] = {
    "": "complete",
    "# only this": "complete",
    "x = 1": "complete",
    "\ufeffx = 1": "complete",
    "x = 1\r\n": "complete",
    "await f()": "complete",
    "async with a as b: pass\n": "complete",
    "for x in y:\n    pass\n": "complete",
    "if a:\n    b\nelse:\n    c\n\n": "complete",
    "for x in y:": "incomplete",
    "for x in y:\n    pass": "incomplete",
    "if a: b": "incomplete",
    "def f():\n    # to do": "incomplete",
    "@decorator": "incomplete",
    "foo(": "incomplete",
    "'''a": "incomplete",
    "x = \\": "incomplete",
    "print('''\n": "incomplete",
    "f'''{a": "incomplete",
    "'a": "invalid",
    ")": "invalid",
    "  x": "invalid",
    "return 1": "invalid",
    "for x in y:\nz": "invalid",
    "x = 1\0": "invalid",
    "if a:\n    b\n  c": "invalid",
}
BASH_CASES: dict[str, str] = {
    "": "complete",
    "echo a; echo b": "complete",
    "# only this": "complete",
    "# ends in \\": "complete",
    "if a; then b; fi": "complete",
    "cat <<E\na\nE": "complete",
    "echo 'a\nb'": "complete",
    "echo a\\\\": "complete",
    "echo !(a)": "complete",
    "f() { :; }": "complete",
    "if a": "incomplete",
    "f() {": "incomplete",
    "a &&": "incomplete",
    "[[ a &&": "incomplete",
    "echo 'a": "incomplete",
    "echo $(a": "incomplete",
    "a=(": "incomplete",
    "cat <<E": "incomplete",
    "x=$(cat <<E": "incomplete",
    "echo a \\": "incomplete",
    "fi": "invalid",
    ")": "invalid",
    "fi # syntax error: unexpected end of file": "invalid",
    "fi\nbash: line 1: syntax error: unexpected end of file": "invalid",
}


@pytest.mark.parametrize("code", PYTHON_CASES)
def test_whole_python_is_told_from_a_part(code: str) -> None:
    assert check_python(code).status == PYTHON_CASES[code]


@pytest.mark.parametrize("code", BASH_CASES)
def test_whole_bash_is_told_from_a_part(code: str) -> None:
    assert check_bash(code).status in (BASH_CASES[code], "unknown")  # within its time


@pytest.mark.parametrize(
    ("interpreter", "code", "indent"),
    [
        ("python", "for x in y:", "    "),
        ("python", "if a:\n  b\n  if c:", "    "),
        ("python", "if a:\n\tif b:", "\t\t"),
        ("python", "def f():\n    if a:\n        return 1", "    "),
        ("python", "def f():\n    return 1", ""),
        ("python", "foo(\n", "    "),
        ("python", "x = '''\n    a:", ""),
        ("python", "x = 1", ""),
        ("python", "  x", ""),
        ("bash", "if a; then\n  b", "  "),
        ("bash", "echo 'a (", ""),
        ("bash", "cat <<E\n  a", ""),
    ],
)
def test_the_next_lines_indentation(interpreter: str, code: str, indent: str) -> None:
    found = check_python(code) if interpreter == "python" else check_bash(code)
    assert found.indent == indent


@pytest.mark.parametrize(
    ("code", "indent"),
    [("if (a) {", "    "), ("if (a) {\n  if (b) {", "    "), ("const a = `\n  {", "")],
)
def test_the_next_lines_indentation_in_node(code: str, indent: str) -> None:
    assert with_indent("incomplete", code) == ("incomplete", indent)
    assert with_indent("invalid", code) == ("invalid", "")


def test_a_check_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "startup").write_text(f"> {tmp_path}/run\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "startup"))
    assert check_python("open('run', 'w')").status == "complete"
    check_bash('> run; echo $(> run) "`> run`" $(( $(> run) ))')
    assert not (tmp_path / "run").exists()


DEEP = {
    "brackets": "(" * 30_000,
    "pairs": "[" * 20_000 + "]" * 20_000,
    "signs": "-" * 60_000 + "1",
    "attributes": "a" + ".a" * 30_000,
    "lambdas": "lambda:" * 9_000 + "a",
    "elifs": "if a: b\n" + "elif a: b\n" * 6_000,
    "blocks": "".join(" " * i + "if a:\n" for i in range(300)),
    "f-strings": "f'{" * 20_000,
    "groups": "{ " * 30_000,
    "substitutions": "$(" * 30_000,
    "functions": "() => " * 10_000 + "1",
    "long": "x = 1\n" * 10_000,
    "surrogates": "\ud800" * 1000,
    "huge": "x" * 8 * 1024 * 1024,
}


@pytest.mark.parametrize("name", DEEP)
def test_a_check_survives_deep_and_long_texts(name: str) -> None:
    for found in (check_python(DEEP[name]), check_bash(DEEP[name])):
        assert found.status in {"complete", "incomplete", "invalid", "unknown"}
        if name == "huge":
            assert found.status == "unknown"
