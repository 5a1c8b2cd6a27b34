"""Texts that a model reads, word for word."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import pictures
from fake_runner import a_result
from nsm.wire.code import PLACE, Truncation
from nsm.wire.errors import InternalError, NsmError, StartFailedError, WrongEnvironmentError
from nsmd.mcp import render
from nsmd.mcp.render import ToolReply, render_error, render_result, show_displays, unlike_json
from nsmd.model.values import Outcome, RunOutcome

OF_A_CALL = {
    *("session", "created", "replaced", "waited_s", "timeout_s", "clamped_from_s"),
    *("notes", "longest_s", "keeps_state"),
}


def ran(stdout: str = "", stderr: str = "", exit_code: int = 0, **more: Any) -> RunOutcome:
    """A result; `more` is of the call (`a_result`) or of its outcome."""
    of_call = {name: more.pop(name) for name in OF_A_CALL & more.keys()}
    outcome = Outcome(stdout=stdout, stderr=stderr, exit_code=exit_code, **more)
    return a_result(outcome, **of_call)


def truncated(file: str | None, file_bytes: int = 200_000) -> dict[str, Truncation]:
    return {"stdout": Truncation(123_456, file, total_bytes=200_000, file_bytes=file_bytes)}


timed_out = partial(ran, exit_code=124, timed_out=True, longest_s=30, keeps_state=True)

TOLD: dict[str, tuple[RunOutcome, str]] = {
    "output": (ran("hi\n"), "hi\n"),
    "nothing": (ran(), "(no output)\n"),
    "both streams": (ran("out\n", "err\n"), "out\n--- stderr ---\nerr\n"),
    "stderr alone": (ran("", "err\n"), "--- stderr ---\nerr\n"),
    "failed": (ran("", "Traceback\n", 1), "--- stderr ---\nTraceback\n[exit code 1]"),
    "failed without a word": (ran(exit_code=3), "[exit code 3]"),
    "timed out in a one-shot": (
        timed_out("tick\n"),
        (
            "tick\n[timed out after 30 s; exit code 124]\n"
            "[longer work: `background` in a session, then ask with `job`]"
        ),
    ),
    "timed out, with room for a longer limit": (
        timed_out(session="a", timeout_s=5),
        "[timed out after 5 s; exit code 124]\n[timeout_seconds may be up to 30]",
    ),
    "timed out at the longest limit": (
        timed_out(session="a"),
        (
            "[timed out after 30 s; exit code 124]\n"
            "[longer work: `background` in this session, then ask with `job`]"
        ),
    ),
    "timed out, and the interpreter with it": (
        timed_out(
            session="a",
            longest_s=None,
            interpreter_restarted=True,
            restart_reason="It ignored the interrupt.",
        ),
        (
            "[timed out after 30 s; exit code 124; interpreter restarted (state lost): "
            "It ignored the interrupt]"
        ),
    ),
    "restarted before, for no known reason": (
        ran("1\n", session="a", interpreter_restarted=True),
        "1\n[interpreter restarted (state lost)]",
    ),
    "stopped by a rule, whereupon it went on": (
        ran("ok\n", notes=("policy: a\x1b\n]b",)),
        "ok\n[policy: a ]b]",
    ),
    "an interpreter that ends with its one-shot is not news": (
        ran(exit_code=3, interpreter_restarted=True, restart_reason="bash exited."),
        "[exit code 3]",
    ),
    "interrupted by somebody": (
        ran(exit_code=130, interrupted=True),
        "[interrupted; exit code 130]",
    ),
    "truncated in a one-shot": (
        ran("a\n", truncated=truncated(None)),
        (
            "a\n[stdout truncated, 121 KiB left out: repeat with a session to keep up to 64 MiB in "
            "a file]"
        ),
    ),
    "truncated in a session": (
        ran("a\n", session="s", truncated=truncated("/workspace/.nsm/out")),
        "a\n[stdout truncated, 121 KiB left out: all of it is in /workspace/.nsm/out]",
    ),
    "truncated in a session whose disk is full": (
        ran("a\n", session="s", truncated=truncated(None)),
        "a\n[stdout truncated, 121 KiB left out]",
    ),
    "a file that is full": (
        ran("a\n", session="s", truncated=truncated("/f", 99)),
        (
            "a\n[stdout truncated, 121 KiB left out: its first 99 of 200,000 bytes are in /f "
            "(later ones were not kept)]"
        ),
    ),
    "a new session": (ran("1\n", session="a", created=True), "1\n[session 'a' is new]"),
    "a session that is not what the model thinks it is": (
        ran(session="a", created=True, replaced="ended 12 min ago (idle timeout)"),
        (
            "(no output)\n[session 'a' is new: the earlier one ended 12 min ago (idle timeout); "
            "variables and /workspace were lost]"
        ),
    ),
    "waited": (
        ran(session="a", waited_s=3.21),
        "(no output)\n[waited 3.2 s for an earlier call in this session]",
    ),
    "clamped": (
        ran(clamped_from_s=600, timeout_s=30),
        "(no output)\n[timeout_seconds lowered from 600 s to 30 s, the limit of python]",
    ),
    "a displayed value": (
        ran("1\n", displays=({"text/plain": "<Figure>", "text/html": "<b>"},)),
        "1\n<Figure>\n",
    ),
    "no image and its words": (
        ran(displays=({"image/png": "A" * 8000, "text/plain": "<Figure>"},)),
        "<Figure>\n[image/png, 6,000 bytes, cannot be shown: it is not a PNG]\n",
    ),
    "data": (
        ran("", "warn", displays=({"application/json": {"a": [1, "ä"]}}, {"x/y\n": 7})),
        '--- stderr ---\nwarn\n{"a": [1, "ä"]}\n[x/y, 0 bytes, is not shown]\n',
    ),
    "surrogates": (ran("a\ud800\ud83d\ude00\n"), "a\ufffd😀\n"),
    "NUL is left as it is, and colours are not": (ran("\x1b[31m\0\n"), "\0\n"),
}


@pytest.mark.parametrize(("result", "text"), TOLD.values(), ids=TOLD)
def test_a_result_is_told(result: RunOutcome, text: str) -> None:
    reply = render_result(result)
    assert reply.text == text
    assert reply.is_error is (result.outcome.exit_code != 0)


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
def test_texts_that_are_no_json_get_no_note(text: str) -> None:
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


@pytest.mark.parametrize(
    ("session", "where"),
    [(None, "save to files, in a session, from where"), ("plots", "save to files from where")],
)
def test_a_note_about_images_left_out_says_how_to_get_them(session: str | None, where: str) -> None:
    wide = {"image/png": pictures.text(pictures.png(8001, 1))}
    reply = render_result(ran(displays=(wide,), session=session))
    assert reply.images == ()
    assert where in reply.text
    assert f"`nsm cp {session or 'SESSION'}:PATH .`" in reply.text


def test_output_that_is_cut_twice_is_counted_once() -> None:
    text = "é" * 25_000 + "\n[... 700 bytes left out ...]\n" + "b" * 25_000
    told = {"stdout": Truncation(700, "/f", total_bytes=75_700, file_bytes=75_700)}
    reply = render_result(ran(text, session="s", truncated=told))
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


def test_a_flood_of_one_stream_leaves_the_other_whole() -> None:
    reply = render_result(ran("x" * 1_000_000, "the error\n", 1))
    assert "--- stderr ---\nthe error\n[" in reply.text
    assert len(reply.text) < 40_300


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WrongEnvironmentError("Session 'a' runs bash.", hint="Use another."), None),
        (
            StartFailedError("bwrap: setting up uid map: Permission denied"),
            (
                "bwrap: setting up uid map: Permission denied\n"
                "`nsm doctor` says what is missing on this machine."
            ),
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


def test_images_leave_room_for_a_long_text() -> None:
    """Text and images are one line of JSON, which has a limit."""
    large = {"image/png": pictures.text(pictures.png(noise_bytes=3_500_000))}
    result = ran("\0" * 2_000_000, displays=(large, large))
    assert len(render_result(result, max_chars=10_000).images) == 2
    reply = render_result(result, max_chars=10_000_000)
    assert reply.images == ()
    assert "used up the room" in reply.text


# Displays as text and images.


PNG, JPEG = pictures.text(pictures.png()), pictures.text(pictures.jpeg())
SVG = "<svg/>"
FIGURE = "<Figure size 4x3 with 1 Axes>"

CASES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("a figure", {"text/plain": FIGURE, "image/png": PNG}, "[image 1: image/png, 4x3]\n", [PNG]),
    (
        "a repr and a caption",
        {"text/plain": FIGURE, "text/markdown": "**Loss**", "image/png": PNG},
        "[image 1: image/png, 4x3]\n**Loss**\n",
        [PNG],
    ),
    (
        "the richest wins",
        {
            "text/plain": FIGURE,
            "text/html": "<img>",
            "image/svg+xml": SVG,
            "image/jpeg": JPEG,
            "image/png": PNG,
            "application/json": {"a": 1},
        },
        "[image 1: image/png, 4x3]\n",
        [PNG],
    ),
    (
        "one that is broken gives way",
        {"image/png": "AAAA", "image/jpeg": JPEG},
        "[image 1: image/jpeg, 4x3]\n",
        [JPEG],
    ),
    (
        "a broken one alone",
        {"text/plain": FIGURE, "image/png": "AAAA"},
        f"{FIGURE}\n[image/png, 3 bytes, cannot be shown: it is not a PNG]\n",
        [],
    ),
    (
        "a JPEG that is none, and SVG",
        {"image/jpeg": PNG, "image/svg+xml": SVG},
        "<svg/>\n[image/jpeg, 68 bytes, cannot be shown: it is not a JPEG]\n",
        [],
    ),
    (
        "no text",
        {"image/png": ["x"]},
        "[image/png, 0 bytes, cannot be shown: it is not base64 text]\n",
        [],
    ),
    ("SVG is text", {"text/plain": "<S>", "image/svg+xml": SVG}, "<svg/>\n", []),
    ("words before SVG", {"text/plain": "a tree", "image/svg+xml": SVG}, "a tree\n", []),
    (
        "other media are named",
        {"text/plain": "x", "audio/wav": "A" * 80},
        "x\n[audio/wav, 60 bytes, is not shown]\n",
        [],
    ),
    ("nothing to read", {"text/latex": "x^2"}, "[text/latex, 2 bytes, is not shown]\n", []),
    ("nothing", {}, "", []),
    # With a place, the text is in stdout already.
    (
        "an image",
        {"text/plain": "Loss", "image/png": PNG, PLACE: 3},
        "[image 3: image/png, 4x3]\n",
        [PNG],
    ),
    (
        "an SVG",
        {"text/plain": FIGURE, "image/svg+xml": SVG, PLACE: 2},
        "[image 2: image/svg+xml]\n<svg/>\n",
        [],
    ),
]


@pytest.mark.parametrize(
    ("bundle", "text", "images"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_display_is_text_and_images(bundle: dict[str, Any], text: str, images: list[str]) -> None:
    shown = show_displays([bundle])
    assert shown.text == text
    assert [image.base64 for image in shown.images] == images
    assert shown.omitted_images == 0


def left_out(*bundles: dict[str, Any], room_chars: int = render.MAX_IMAGES_CHARS) -> str:
    """Return the note about the display that has no room."""
    shown = show_displays(bundles, room_chars=room_chars)
    assert len(shown.images) == len(bundles) - 1
    assert shown.omitted_images == 1
    return shown.text.splitlines()[-1]


def test_a_picture_of_two_types_is_one_picture() -> None:
    large = pictures.text(pictures.png(noise_bytes=3 * 5 * 1024 * 1024 // 4))
    shown = show_displays([{"image/png": large, "image/jpeg": JPEG}])
    assert (len(shown.images), shown.omitted_images) == (1, 0)
    shown = show_displays([{"image/png": PNG, "image/jpeg": JPEG}], room_chars=0)
    assert (len(shown.images), shown.omitted_images) == (0, 1)


def test_images_over_a_limit_are_left_out_with_the_reason() -> None:
    fits = pictures.text(pictures.png(noise_bytes=3 * 5 * 1024 * 1024 // 4 - 90))
    assert render.MAX_IMAGE_CHARS - 16 < len(fits) <= render.MAX_IMAGE_CHARS
    assert show_displays([{"image/png": fits}]).omitted_images == 0
    large = pictures.text(pictures.png(noise_bytes=3 * 5 * 1024 * 1024 // 4))
    assert left_out({"image/png": large}) == (
        "[image/png, 4x3, 3,840 KiB, is left out: "
        f"models take 5,242,880 characters of base64, it has {len(large):,}]"
    )
    assert left_out({"image/png": fits}, {"image/png": fits}, {"image/png": PNG * 2000}) == (
        "[image/png, 4x3, 135 KiB, is left out: the images before it have used up the room]"
    )
    assert left_out({"image/png": PNG}, room_chars=-5).endswith("have used up the room]")
    tall = pictures.text(pictures.png(1, 8001))
    assert left_out({"image/png": tall}) == (
        "[image/png, 1x8001, 95 bytes, is left out: a side has more than 8000 pixels]"
    )
    many = [{"image/png": PNG}] * (render.MAX_IMAGES + 1)
    assert left_out(*many).endswith("is left out: a result shows at most 20 images]")


def test_an_image_that_is_too_large_gives_way_to_another_form() -> None:
    tall = pictures.text(pictures.png(1, 8001))
    shown = show_displays([{"image/png": tall, "image/jpeg": JPEG}])
    assert [image.kind for image in shown.images] == ["image/jpeg"]
