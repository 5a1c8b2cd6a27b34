"""Somebody at a terminal is asked before a box starts."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

SUPPORT = Path(__file__).resolve().parents[1] / "support"

ASK = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
from box.plans import HOME, plan
from nsmbox.consent.confirm import confirm
from nsmbox.model.plan import BoxError, Mount
more = [Mount(kind="bind", target=at, source=at) for at in sys.argv[1:]]
try:
    confirm(plan(mounts=more), home=HOME)
    print("STARTED", flush=True)
except BoxError as error:
    print(error.message, error.exit_code)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Terminal]:
    def start(*more: str, shell: str = "", **options: int) -> Terminal:
        command = [sys.executable, "-c", ASK, *more]
        if shell:
            command = ["/bin/sh", "-c", f'exec "$0" "$@" {shell}', *command]
        return Terminal(command, {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}, **options)

    return start


def kept(tmp_path: Path) -> bool:
    return (tmp_path / "nsm" / "boxes.json").exists()


def test_once_is_not_remembered(ask: Callable[..., Terminal], tmp_path: Path) -> None:
    with ask() as terminal:
        terminal.see("[n]o:")
        terminal.type("O\r")
        terminal.end()
        assert "STARTED" in terminal.text
    assert not kept(tmp_path)


@pytest.mark.parametrize("answer", ["\r", "\x04", "no\r"], ids=ascii)
def test_no_starts_nothing(ask: Callable[..., Terminal], answer: str, tmp_path: Path) -> None:
    with ask() as terminal:
        terminal.see("[n]o:")
        terminal.type(answer)
        terminal.end()
        assert "STARTED" not in terminal.text
        assert "nothing was started. 1" in terminal.text
    assert not kept(tmp_path)


def test_details_and_what_is_no_answer_are_asked_again(ask: Callable[..., Terminal]) -> None:
    with ask() as terminal:
        terminal.see("[n]o:")
        terminal.type("d\r")
        terminal.see("mounts, later ones over earlier ones:", "network:", "[n]o:")
        terminal.type("sure\r")
        terminal.see("Please type one of the letters", "[n]o:")
        terminal.type("o\r")
        terminal.end()
        assert "STARTED" in terminal.text


def test_something_else_for_ever_is_no(ask: Callable[..., Terminal]) -> None:
    with ask() as terminal:
        for count in range(1, 6):
            terminal.wait(lambda e, count=count: e.text.count("[n]o:") == count, str(count))  # type: ignore[misc]
            terminal.type("maybe\r")
        terminal.end()
        assert "nothing was started. 1" in terminal.text


def test_ctrl_c_starts_nothing_and_leaves_the_terminal(
    ask: Callable[..., Terminal], tmp_path: Path
) -> None:
    with ask() as terminal:
        terminal.see("[n]o:")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "STARTED" not in terminal.text
        assert terminal.mode_after == terminal.mode_before
    assert not kept(tmp_path)


def test_a_signal_starts_nothing(ask: Callable[..., Terminal], tmp_path: Path) -> None:
    with ask() as terminal:
        terminal.see("[n]o:")
        terminal.process.terminate()
        assert terminal.end() == -signal.SIGTERM
        assert terminal.mode_after == terminal.mode_before
    assert not kept(tmp_path)


def test_keys_typed_before_the_question_do_not_answer_it(
    ask: Callable[..., Terminal],
) -> None:
    with ask() as terminal:
        terminal.type("y\r" * 3)
        terminal.see("[n]o:")
        terminal.type("n\r")
        terminal.end()
        assert "STARTED" not in terminal.text


@pytest.mark.parametrize("shell", ["| cat", "</dev/null", "2>/dev/null"])
def test_streams_that_lead_elsewhere(ask: Callable[..., Terminal], shell: str) -> None:
    """The question is asked where somebody sits, and nothing of it gets into the output."""
    with ask(shell=shell) as terminal:
        terminal.see("A box for claude", "[n]o:")
        terminal.type("o\r")
        assert terminal.end() == 0
        terminal.see("STARTED")


def test_an_answer_that_cannot_be_kept_is_told(
    ask: Callable[..., Terminal], tmp_path: Path
) -> None:
    (tmp_path / "nsm").write_text("no directory")
    with ask() as terminal:
        terminal.see("[n]o:")
        terminal.type("y\r")
        terminal.end()
        terminal.see("nsm: the answer cannot be kept: ", "It will be asked again.", "STARTED")


def test_a_window_that_is_closed_starts_nothing(
    ask: Callable[..., Terminal], tmp_path: Path
) -> None:
    with ask() as terminal:
        terminal.see("[n]o:")
        terminal.vanish()
        assert terminal.process.wait(120) == -signal.SIGHUP
    assert not kept(tmp_path)
