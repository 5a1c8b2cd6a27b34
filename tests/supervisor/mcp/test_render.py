"""Texts that a model reads, word for word."""

from __future__ import annotations

import pytest

import pictures
from fake_runner import a_result
from nsm.wire.code import Truncation
from nsm.wire.errors import (
    InternalError,
    NsmError,
    SessionLimitError,
    StartFailedError,
    UnknownEnvironmentError,
    WrongEnvironmentError,
)
from nsmd.mcp.render import ToolReply, render_error, render_result, unlike_json
from nsmd.model.values import Outcome, RunOutcome


def ran(stdout: str = "", stderr: str = "", exit_code: int = 0, **more: object) -> RunOutcome:
    outcome = Outcome(stdout=stdout, stderr=stderr, exit_code=exit_code, **more)  # type: ignore[arg-type]
    return a_result(outcome)


def truncated(file: str | None = "/workspace/.nsm/out") -> dict[str, Truncation]:
    return {"stdout": Truncation(123_456, file, total_bytes=200_000, file_bytes=200_000)}


TIMED_OUT = Outcome(stdout="", stderr="", exit_code=124, timed_out=True)

GOLDEN: list[tuple[str, RunOutcome, str, bool]] = [
    ("output", ran("hi\n"), "hi\n", False),
    ("output without an end of line", ran("hi"), "hi", False),
    ("nothing", ran(), "(no output)\n", False),
    ("an empty line is output", ran("\n"), "\n", False),
    ("both streams", ran("out\n", "err\n"), "out\n--- stderr ---\nerr\n", False),
    ("both without ends of lines", ran("out", "err"), "out\n--- stderr ---\nerr", False),
    ("stderr alone", ran("", "err\n"), "--- stderr ---\nerr\n", False),
    ("failed", ran("", "Traceback\n", 1), "--- stderr ---\nTraceback\n[exit code 1]", True),
    ("failed without a word", ran(exit_code=3), "[exit code 3]", True),
    ("failed after half a line", ran("x", exit_code=1), "x\n[exit code 1]", True),
    (
        "timed out",
        ran("tick\n", exit_code=124, timed_out=True),
        "tick\n[timed out after 30 s; exit code 124]",
        True,
    ),
    (
        "timed out, with room for a longer limit",
        a_result(TIMED_OUT, session="a", timeout_s=5, longest_s=30, keeps_state=True),
        "[timed out after 5 s; exit code 124]\n[timeout_seconds may be up to 30]",
        True,
    ),
    (
        "timed out at the longest limit",
        a_result(TIMED_OUT, session="a", longest_s=30, keeps_state=True),
        (
            "[timed out after 30 s; exit code 124]\n[longer work: `background` in this "
            "session, then ask with `job`]"
        ),
        True,
    ),
    (
        "timed out in a one-shot",
        a_result(TIMED_OUT, longest_s=30, keeps_state=True),
        (
            "[timed out after 30 s; exit code 124]\n[longer work: `background` in a "
            "session, then ask with `job`]"
        ),
        True,
    ),
    (
        "timed out where there are no sessions",
        a_result(TIMED_OUT, longest_s=30),
        "[timed out after 30 s; exit code 124]",
        True,
    ),
    (
        "timed out, and the interpreter with it",
        a_result(
            Outcome(
                stdout="",
                stderr="",
                exit_code=124,
                timed_out=True,
                interpreter_restarted=True,
                restart_reason="It ignored the interrupt.",
            ),
            session="a",
        ),
        (
            "[timed out after 30 s; exit code 124; interpreter restarted (state lost): "
            "It ignored the interrupt]"
        ),
        True,
    ),
    (
        "restarted before, for no known reason",
        a_result(
            Outcome(stdout="1\n", stderr="", exit_code=0, interpreter_restarted=True),
            session="a",
        ),
        "1\n[interpreter restarted (state lost)]",
        False,
    ),
    (
        "stopped by a rule of the jail",
        a_result(
            Outcome(stdout="", stderr="err\n", exit_code=1), notes=("policy: network is off",)
        ),
        "--- stderr ---\nerr\n[exit code 1]\n[policy: network is off]",
        True,
    ),
    (
        "stopped by a rule, whereupon it went on",
        a_result(Outcome(stdout="ok\n", stderr="", exit_code=0), notes=("policy: a\x1b\n]b",)),
        "ok\n[policy: a ]b]",
        False,
    ),
    (
        "an interpreter that ends with its one-shot is no news",
        ran(exit_code=3, interpreter_restarted=True, restart_reason="bash exited."),
        "[exit code 3]",
        True,
    ),
    (
        "interrupted by somebody",
        ran(exit_code=130, interrupted=True),
        "[interrupted; exit code 130]",
        True,
    ),
    (
        "truncated in a one-shot",
        ran("a\n", truncated=truncated(None)),
        (
            "a\n[stdout truncated, 121 KiB left out: repeat with a session to keep up to 64 MiB in "
            "a file]"
        ),
        False,
    ),
    (
        "truncated in a session",
        a_result(Outcome(stdout="a\n", stderr="", exit_code=0, truncated=truncated()), session="s"),
        "a\n[stdout truncated, 121 KiB left out: all of it is in /workspace/.nsm/out]",
        False,
    ),
    (
        "a file that is full",
        a_result(
            Outcome(
                stdout="a\n",
                stderr="",
                exit_code=0,
                truncated={"stdout": Truncation(123_456, "/f", total_bytes=200_000, file_bytes=99)},
            ),
            session="s",
        ),
        (
            "a\n[stdout truncated, 121 KiB left out: its first 99 of 200,000 bytes are in /f "
            "(later ones were not kept)]"
        ),
        False,
    ),
    (
        "a file of an agent that does not say how much is in it",
        a_result(
            Outcome(stdout="", stderr="", exit_code=0, truncated={"stdout": Truncation(5, "/f")}),
            session="s",
        ),
        "(no output)\n[stdout truncated, 5 bytes left out: its beginning is in /f]",
        False,
    ),
    (
        "truncated in a session whose disk is full",
        a_result(
            Outcome(stdout="a\n", stderr="", exit_code=0, truncated=truncated(None)), session="s"
        ),
        "a\n[stdout truncated, 121 KiB left out]",
        False,
    ),
    (
        "a new session",
        a_result(Outcome(stdout="1\n", stderr="", exit_code=0), session="a", created=True),
        "1\n[session 'a' is new]",
        False,
    ),
    (
        "a session that is not what the model thinks it is",
        a_result(session="a", created=True, replaced="ended 12 min ago (idle timeout)"),
        (
            "(no output)\n[session 'a' is new: the earlier one ended 12 min ago (idle timeout); "
            "variables and /workspace were lost]"
        ),
        False,
    ),
    ("a known session", a_result(session="a"), "(no output)\n", False),
    ("a one-shot is always new", a_result(created=True), "(no output)\n", False),
    (
        "waited",
        a_result(waited_s=3.21, session="a"),
        "(no output)\n[waited 3.2 s for an earlier call in this session]",
        False,
    ),
    ("waited unnoticed", a_result(waited_s=0.99, session="a"), "(no output)\n", False),
    (
        "clamped",
        a_result(clamped_from_s=600, timeout_s=30),
        "(no output)\n[timeout_seconds lowered from 600 s to 30 s, the limit of python]",
        False,
    ),
    (
        "a displayed value",
        ran("1\n", displays=({"text/plain": "<Figure>", "text/html": "<b>"},)),
        "1\n<Figure>\n",
        False,
    ),
    (
        "no image and its words",
        ran(displays=({"image/png": "A" * 8000, "text/plain": "<Figure>"},)),
        "<Figure>\n[image/png, 6,000 bytes, cannot be shown: it is not a PNG]\n",
        False,
    ),
    (
        "data",
        ran("", "warn", displays=({"application/json": {"a": [1, "ä"]}}, {"x/y\n": 7})),
        '--- stderr ---\nwarn\n{"a": [1, "ä"]}\n[x/y, 0 bytes, is not shown]\n',
        False,
    ),
    ("surrogates", ran("a\ud800\ud83d\ude00\n"), "a\ufffd😀\n", False),
    ("NUL is left as it is, and colours are not", ran("\x1b[31m\0\n"), "\0\n", False),
]


@pytest.mark.parametrize(
    ("result", "text", "is_error"), [row[1:] for row in GOLDEN], ids=[row[0] for row in GOLDEN]
)
def test_results(result: RunOutcome, text: str, is_error: bool) -> None:
    reply = render_result(result)
    assert reply.text == text
    assert reply.is_error is is_error


def test_images_follow_the_text() -> None:
    picture = {"text/plain": "<Figure>", "image/png": pictures.text(pictures.png())}
    reply = render_result(
        a_result(
            Outcome(stdout="1\n", stderr="", exit_code=0, displays=(picture,)),
            session="a",
            created=True,
        )
    )
    assert reply.text == "1\n[image 1: image/png, 4x3]\n[session 'a' is new]"
    assert [image.data for image in reply.images] == [pictures.png()]


@pytest.mark.parametrize(
    "text",
    [
        "42\n",
        "42",
        " -1.5e3 \n",
        "1" * 5000,
        "[1, 2]\n",
        '"text"\n',
        "true",
        "null\n",
        "[" * 20_000 + "]" * 20_000,
    ],
)
def test_a_text_that_is_json_and_no_object_gets_a_note(text: str) -> None:
    assert unlike_json(text) == f"{text.rstrip(chr(10))}\n[exit code 0]"


@pytest.mark.parametrize(
    "text",
    ["", "\n", '{"a": 1}\n', "{}", "['a']\n", "1\n2\n", "True\n", "NaN", "Infinity\n", "[1", "(1)"],
)
def test_other_texts_get_none(text: str) -> None:
    assert unlike_json(text) == text


def test_an_error_has_no_images() -> None:
    """Some models' APIs refuse a conversation in which an error has images."""
    picture = {"text/plain": "<Figure>", "image/png": pictures.text(pictures.png())}
    reply = render_result(ran("1\n", exit_code=1, displays=(picture,)))
    assert reply.is_error
    assert reply.images == ()
    assert reply.text == (
        "1\n<Figure>\n[image/png, 4x3, 68 bytes, is left out: a failed call shows none]\n"
        "[1 image left out: show in a call that succeeds, or save to files, in a session, from "
        "where a person gets them with `nsm cp SESSION:PATH .`]\n[exit code 1]"
    )


def test_an_image_alone_is_output() -> None:
    reply = render_result(ran(displays=({"image/png": pictures.text(pictures.png())},)))
    assert reply.text == "[image 1: image/png, 4x3]\n"


@pytest.mark.parametrize(
    ("session", "where"),
    [
        (None, "save to files, in a session, from where"),
        ("plots", "save to files from where"),
    ],
)
def test_what_to_do_about_images_that_are_left_out(session: str | None, where: str) -> None:
    wide = {"image/png": pictures.text(pictures.png(8001, 1))}
    reply = render_result(
        a_result(Outcome(stdout="", stderr="", exit_code=0, displays=(wide,)), session=session)
    )
    assert reply.images == ()
    assert where in reply.text
    assert f"`nsm cp {session or 'SESSION'}:PATH .`" in reply.text


def test_images_leave_room_for_a_long_text() -> None:
    """Text and images are one line of JSON, which has a limit."""
    large = {"image/png": pictures.text(pictures.png(noise_bytes=3_500_000))}
    outcome = Outcome(stdout="\0" * 2_000_000, stderr="", exit_code=0, displays=(large, large))
    assert len(render_result(a_result(outcome), max_chars=10_000).images) == 2
    reply = render_result(a_result(outcome), max_chars=10_000_000)
    assert reply.images == ()
    assert "used up the room" in reply.text


def test_a_chosen_name_is_told() -> None:
    result = a_result(session="python-amber-7", created=True)
    reply = render_result(result, name_chosen=True)
    assert reply.text == "(no output)\n[session: python-amber-7]"


def test_notes_come_in_their_own_lines_session_first() -> None:
    result = a_result(
        Outcome(stdout="x", stderr="", exit_code=1),
        session="a",
        created=True,
        waited_s=2,
        clamped_from_s=99.5,
    )
    assert render_result(result).text == (
        "x\n[session 'a' is new]\n[waited 2 s for an earlier call in this session]\n"
        "[timeout_seconds lowered from 99.5 s to 30 s, the limit of python]\n[exit code 1]"
    )


def test_what_is_cut_twice_is_counted_once() -> None:
    text = "é" * 25_000 + "\n[... 700 bytes left out ...]\n" + "b" * 25_000
    told = {"stdout": Truncation(700, "/f", total_bytes=75_700, file_bytes=75_700)}
    outcome = Outcome(stdout=text, stderr="", exit_code=0, truncated=told)
    reply = render_result(a_result(outcome, session="s"))
    assert reply.text == (
        "é" * 20_000
        + "\n[... 15,700 bytes left out ...]\n"
        + "b" * 20_000
        + "\n[stdout truncated: all of it is in /f]"
    )


def test_the_cap_keeps_head_and_tail() -> None:
    reply = render_result(ran("a" * 30_000 + "b" * 30_000))
    assert reply.text.startswith("a" * 20_000 + "\n[... 20,000 characters left out ...]\nb")
    assert reply.text.endswith(
        "b" * 20_000 + "\n[output truncated, 20,000 characters left out: print less, or write it "
        "to a file in a session and read parts of it]"
    )
    assert len(reply.text) < 40_300


def test_exactly_at_the_cap_nothing_is_cut() -> None:
    assert render_result(ran("a" * 40_000)).text == "a" * 40_000


def test_of_a_progress_bar_the_last_state_is_shown() -> None:
    bar = "".join(f"\r{n}%|{'#' * n}" for n in range(101)) + "\n"
    assert render_result(ran("a\n", bar)).text == (f"a\n--- stderr ---\n100%|{'#' * 100}\n")


def test_a_flood_of_one_stream_leaves_the_other_whole() -> None:
    reply = render_result(ran("x" * 1_000_000, "the error\n", 1))
    assert "--- stderr ---\nthe error\n[" in reply.text
    assert len(reply.text) < 40_300


def test_two_floods_share() -> None:
    reply = render_result(ran("x" * 1_000_000, "y" * 1_000_000))
    assert reply.text.count("x") - reply.text.count("xt") == pytest.approx(20_000, abs=10)
    assert reply.text.count("y") == pytest.approx(20_000, abs=10)


def test_a_smaller_cap() -> None:
    assert len(render_result(ran("x" * 5000), max_chars=1000).text) < 1300


def test_extras_for_programs() -> None:
    meta = render_result(ran("x", exit_code=2, duration_s=0.25, truncated=truncated())).meta
    assert meta == {
        "nsm": {
            "exit_code": 2,
            "duration_s": 0.25,
            "execution_id": "e1",
            "env": "python",
            "session": None,
            "session_id": "s1",
            "session_created": False,
            "timed_out": False,
            "interrupted": False,
            "interpreter_restarted": False,
            "waited_s": 0.0,
            "timeout_s": 30.0,
            "omitted_bytes": {"stdout": 123_456},
            "omitted_chars": 0,
        }
    }


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WrongEnvironmentError("Session 'a' runs bash.", hint="Use another."), None),
        (SessionLimitError("64 sessions are live.", hint="End one."), None),
        (InternalError("It broke."), "It broke."),
        (
            StartFailedError("bwrap: setting up uid map: Permission denied"),
            (
                "bwrap: setting up uid map: Permission denied\n"
                "`nsm doctor` says what is missing on this machine."
            ),
        ),
        (
            UnknownEnvironmentError("No environment 'pythn'.", hint="Did you mean 'python'?"),
            "No environment 'pythn'.\nDid you mean 'python'?",
        ),
        (InternalError("half \ud800"), "half \ufffd"),
    ],
)
def test_errors_say_what_to_do(error: NsmError, text: str | None) -> None:
    reply = render_error(error)
    assert reply == ToolReply(
        text=text or f"{error.message}\n{error.hint}",
        is_error=True,
        meta={"nsm": {"error": error.code}},
    )


def test_a_build_log_is_cut() -> None:
    assert len(render_error(StartFailedError("log\n" * 100_000)).text) < 8200
