"""Transcripts as text for people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm.cli.render.transcript import TranscriptPrinter, code, outcome
from nsm.saves import interpreters
from nsm.wire.code import Truncation
from nsm.wire.errors import SessionEndedError
from nsm.wire.transcripts import (
    DisplayedValue,
    ExecutionEnd,
    ExecutionStart,
    JobEnd,
    JobStart,
    LogEnd,
    OutputPiece,
    SessionStart,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from nsm.wire.transcripts import Entry, StreamName

SESSION = SessionStart("27bcf03a", "work", "python", "python", "claude-code", "s", 0.0, 0)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def started(text: str = "f()", number: int = 1, omitted: int = 0) -> ExecutionStart:
    return ExecutionStart("e", number, "nsm attach", text, omitted, 1_700_000_000.9)


def printed(text: str, stream: StreamName = "stdout", skipped: int = 0) -> OutputPiece:
    return OutputPiece("e", stream, text, skipped)


def ended(exit_code: int | None = 0, **more: Any) -> ExecutionEnd:
    plain = ExecutionEnd("e", exit_code, 0.014, False, False, False, "", (), {}, None)
    return plain._replace(**more)


def shown(*entries: Entry) -> str:
    transcript = TranscriptPrinter()
    return "".join(map(transcript.take, entries))


def output(*pieces: OutputPiece) -> str:
    """Return the displayed output of an execution."""
    return shown(*pieces, ended()).removesuffix("[0.01 s]\n")


def test_a_session() -> None:
    transcript = TranscriptPrinter()
    entries: list[Entry] = [
        SESSION._replace(dropped=1),
        started("for n in range(2):\n\tprint(n)\n", 7),
        printed("0\n"),
        printed("1\n"),
        ended(),
        started("1/0", 8),
        printed("Traceback\nZeroDivisionError\n", "stderr"),
        ended(1),
    ]
    text = "".join(map(transcript.take, entries))
    assert text == (
        "session work (27bcf03a): python, opened by claude-code, 1970-01-01 00:00:00\n"
        "(1 older execution no longer kept)\n"
        "\n[7] 2023-11-14 22:13:20 nsm attach\n"
        "> for n in range(2):\n> \tprint(n)\n  0\n  1\n[0.01 s]\n"
        "\n[8] 2023-11-14 22:13:20 nsm attach\n"
        "> 1/0\n! Traceback\n! ZeroDivisionError\n[exit code 1; 0.01 s]\n"
    )
    live = LogEnd("27bcf03a", "work", "idle", None, 8)
    assert transcript.end(live) == ""
    over = live._replace(state="ended", end_reason="idle\ntimeout")
    assert transcript.end(over) == "\nended: idle\\ntimeout\n"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([printed("a"), printed("b\nc"), printed("d")], "  ab\n  cd\n"),
        ([printed("a"), printed("e", "stderr"), printed("b")], "  a\n! e\n  b\n"),
        ([printed("a"), printed("b\n", skipped=1234)], "  a\n[1,234 characters left out]\n  b\n"),
        ([printed("dos\r\nline\r"), printed("\nx\ry\r")], "  dos\n  line\n  x\\ry\\r\n"),
        ([printed("\x1b[3"), printed("1mred\x1b[0m\n")], "  red\n"),
        ([printed("\x1b[3"), printed("x", skipped=5)], "  \\x1b[3\n[5 characters left out]\n  x\n"),
        ([printed("\x1b]0;title\x07\n")], "  \\x1b]0;title\\x07\n"),
        ([printed("tail\x1b[")], "  tail\\x1b[\n"),
        ([printed("a\u2028b\x0bc\x0cd\u202e\n")], "  a\\u2028b\\x0bc\\x0cd\\u202e\n"),
    ],
)
def test_output(pieces: list[OutputPiece], text: str) -> None:
    assert output(*pieces) == text


@given(
    pieces=st.lists(
        st.tuples(
            st.text(alphabet="ab\n\r\x1b[31m]", max_size=8), st.sampled_from(["stdout", "stderr"])
        )
    )
)
def test_no_output_leaves_its_place(pieces: list[tuple[str, StreamName]]) -> None:
    """However it comes in pieces, each line of it has its mark."""
    text = output(*(printed(text, stream) for text, stream in pieces))
    assert all(line.startswith(("  ", "! ")) for line in text.split("\n")[:-1])
    assert not set(text) & {"\x1b", "\r"}
    whole = "".join(text for text, stream in pieces if stream == "stdout")
    if all(stream == "stdout" for _, stream in pieces):
        assert text == output(printed(whole))


@pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS)
def test_own_code_of_a_save_is_one_line(interpreter: str) -> None:
    """Others cannot hide their code by beginning it like that."""
    own = interpreters.code(interpreter, "save")
    first = own.partition("\n")[0]
    start = ExecutionStart("1", 1, "nsm", own, 0, 0.0)
    assert code(start) == f"> {first}\n"
    assert "evil" in code(start._replace(code=f"{own}evil()"))
    assert "evil" in code(start._replace(code=f"{first}\nevil()"))


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ended(), "[0.01 s]\n"),
        (ended(124, timed_out=True), "[timed out; exit code 124; 0.01 s]\n"),
        (ended(130, interrupted=True), "[interrupted; exit code 130; 0.01 s]\n"),
        (
            ended(137, interpreter_restarted=True, restart_reason="It was\nkilled."),
            "[exit code 137; interpreter restarted: It was\\nkilled; 0.01 s]\n",
        ),
        (
            ended(None, error=SessionEndedError("The session ended", hint="Start another.")),
            "[The session ended. Start another.; 0.01 s]\n",
        ),
        (
            ended(truncated={"stdout": Truncation(123_456, "/w/.nsm/a", 200_000, 200_000)}),
            "[121 KiB of stdout left out of the answer: all of it is in /w/.nsm/a; 0.01 s]\n",
        ),
        (
            ended(
                displays=(
                    DisplayedValue({"text/plain": "a\n[9]"}, {}),
                    DisplayedValue({"text/html": "<b>"}, {}),
                )
            ),
            "  a\n  [9]\n  <b>\n[0.01 s]\n",
        ),
        (
            ended(displays=(DisplayedValue({"text/plain": "<Figure>"}, {"image/png": 12_000}),)),
            "  <Figure>\n  [image/png, 12,000 characters]\n[0.01 s]\n",
        ),
        (
            ended(displays=(DisplayedValue({}, {"text/\nplain": 99_999}),)),
            "  [text/\\nplain, 99,999 characters]\n[0.01 s]\n",
        ),
        (
            ended(displays=(DisplayedValue({"text/plain": "\x1b[2J"}, {}),)),
            "  \\x1b[2J\n[0.01 s]\n",
        ),
    ],
)
def test_how_it_ended(end: ExecutionEnd, text: str) -> None:
    assert outcome(end) == text


def test_a_job_amid_output() -> None:
    start = JobStart("1", "nsm", "true", 0, 1_700_000_000.9)
    end = JobEnd("1", "true", "ok", 0, 0, 0.0, 0)
    text = shown(started(), printed("50 %"), start, printed(" 60 %"), end, printed("\n"), ended())
    assert text.endswith(
        "> f()\n  50 %\n\n[job 1] 2023-11-14 22:13:20 nsm\n> true\n   60 %\n"
        "[job 1 (true): 0.00 s]\n  \n[0.01 s]\n"
    )
