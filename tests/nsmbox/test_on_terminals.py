"""Boxes on a person's terminal, who is asked before one starts; and where there is no terminal."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box.world import HOME, PROJECT
from processes import Watched, tree
from selection import one_in
from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from box.world import World

ASKED = "[n]o:"


def on_terminal(world: World, *command: str, shell: str = "", **variables: str) -> Terminal:
    """A program of the world on a terminal of its own, after a shell's redirections."""
    argv = ("/bin/sh", "-c", f'exec "$@" {shell}', "sh", *command) if shell else command
    return Terminal(world.command(*argv), {**world.variables, **variables}, rows=24, columns=80)


def boxed(script: str) -> tuple[str, ...]:
    return ("nsm", "box", "--yes", "--", "/bin/sh", "-c", script)


def test_nobody_agrees_and_nothing_is_made(world: World) -> None:
    for answer, code in (("n\r", 1), ("\x03", 130)):
        with on_terminal(world, "claudebox", "run", "echo", "STARTED") as terminal:
            terminal.see("A box for claude in ~/project:", "can change", ASKED)
            terminal.type(answer)
            assert terminal.end() == code
            assert "\nSTARTED" not in terminal.text
            assert "Traceback" not in terminal.text
            assert terminal.mode_after == terminal.mode_before
    assert not world.host(f"{HOME}/.claudebox").exists()
    assert not world.host(f"{HOME}/.local/state/nsm").exists()
    assert os.listdir(world.host(PROJECT)) == ["README.md"]


def test_agreement_holds_until_the_box_is_another_one(world: World) -> None:
    with on_terminal(world, "nsm", "box", "--", "echo", "STARTED") as terminal:
        terminal.see(ASKED)
        terminal.type("y\r")
        assert terminal.end() == 0
        assert "\nSTARTED" in terminal.text
    with on_terminal(world, "nsm", "box", "--", "echo", "AGAIN") as terminal:
        assert terminal.end() == 0
        assert "AGAIN" in terminal.text
        assert ASKED not in terminal.text
    with on_terminal(world, "nsm", "box", "--net", "off", "--", "echo", "OTHER") as terminal:
        terminal.see("It has changed since you agreed to it", "+ network: nothing", ASKED)
        terminal.type("n\r")
        assert terminal.end() == 1
        assert "\nOTHER" not in terminal.text


def test_ctrl_c_is_the_commands(shared_world: World) -> None:
    script = """
    trap 'echo CAUGHT' INT
    echo READY
    while [ -z "$line" ]; do read line; done
    echo "GOT $line"; exit 7
    """
    with on_terminal(shared_world, *boxed(script)) as terminal:
        terminal.see("READY")
        terminal.type("\x03")
        terminal.see("CAUGHT")
        terminal.type("more\r")
        assert terminal.end() == 7
        assert "GOT more" in terminal.text


def test_ctrl_c_ends_a_command_that_does_not_mind(shared_world: World) -> None:
    with on_terminal(shared_world, *boxed("echo READY; exec cat")) as terminal:
        terminal.see("READY")
        terminal.type("\x03")
        assert terminal.end() == 128 + signal.SIGINT
        assert terminal.mode_after == terminal.mode_before


async def test_a_window_that_is_closed_takes_everything_along(shared_world: World) -> None:
    script = "trap '' HUP; sleep 600 & echo READY; cat"
    with on_terminal(shared_world, *boxed(script)) as terminal:
        terminal.see("READY")
        with Watched(tree(terminal.process.pid)) as processes:
            assert processes.alive >= 5, "who waits, bwrap, its init, the shell, two children"
            terminal.vanish()
            assert terminal.process.wait(120) in (0, 1), "cat's: it has nothing to read any more"
            await processes.all_ended()


@pytest.mark.slow
def test_a_resized_window_is_told(shared_world: World) -> None:
    script = """
    trap 'stty size' WINCH
    stty size; echo READY
    while [ -z "$line" ]; do read line; done
    """
    with on_terminal(shared_world, *boxed(script)) as terminal:
        terminal.see("24 80", "READY")
        terminal.resize(31, 97)
        terminal.see("31 97")
        terminal.type("x\r")
        assert terminal.end() == 0


def test_a_shell_has_job_control(shared_world: World) -> None:
    with on_terminal(
        shared_world, "nsm", "box", "--yes", "--", "bash", "--norc", "-i", PS1="> "
    ) as at:
        at.see("$")
        at.type("(echo U''P; exec cat)\r")
        at.see("\nUP")  # the shell has given the terminal away
        at.type("echoed\n")
        at.see("echoed\nechoed")
        at.type("\x1a")
        at.see("Stopped", "$")
        at.type("kill %1; fg\r")
        at.see("Terminated", "$")
        at.type("exit 5\r")
        assert at.end() == 5


def test_without_a_terminal_nobody_is_asked(shared_world: World) -> None:
    done = shared_world.run("claudebox", "run", "cat", stdin="through\n")
    assert (done.returncode, done.stdout) == (0, "through\n")
    assert ASKED not in done.stderr


@pytest.mark.parametrize("kind", one_in(2, ["\x1b[2J", ""]), ids=ascii)
def test_any_kind_of_terminal(shared_world: World, kind: str) -> None:
    script = 'printf "<%s>\\n" "$TERM" | od -An -c'
    with on_terminal(shared_world, "nsm", "box", "--", "sh", "-c", script, TERM=kind) as terminal:
        terminal.see("A box for shell in ~/project:", ASKED)
        assert not terminal.emulator.unknown
        terminal.type("o\r")
        assert terminal.end() == 0
        assert "\\x1b[2J" in terminal.text if kind == "\x1b[2J" else kind in terminal.text


def test_a_name_of_a_directory_does_nothing_to_the_terminal(shared_world: World) -> None:
    odd = f"{HOME}/a\x1b]0;title\x07\x1b[2J\n  can change  nothing\u202e"
    shared_world.make_directory(odd)
    with Terminal(
        shared_world.command("nsm", "box", "--", "pwd", directory=odd),
        shared_world.variables,
        rows=24,
        columns=80,
    ) as terminal:
        terminal.see("A box for shell in", "can change", ASKED)
        assert terminal.emulator.unknown == []
        assert "\\x1b]0;title\\x07\\x1b[2J\\n" in terminal.text
        assert "\\u202e" in terminal.text
        terminal.type("n\r")
        assert terminal.end() == 1
        assert terminal.emulator.unknown == []


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


ANSWERS = {"enter": "\r", "ctrl-d": "\x04", "no": "no\r", "ctrl-c": "\x03"}


@pytest.mark.parametrize("how", [*ANSWERS, "a signal", "a window that is closed"])
def test_nothing_starts_without_a_yes(
    ask: Callable[..., Terminal], how: str, tmp_path: Path
) -> None:
    with ask() as terminal:
        terminal.see("[n]o:")
        if how == "a window that is closed":
            terminal.vanish()
            assert terminal.process.wait(120) == -signal.SIGHUP
        else:
            terminal.type(ANSWERS[how]) if how in ANSWERS else terminal.process.terminate()
            ends = {"ctrl-c": 130, "a signal": -signal.SIGTERM}
            assert terminal.end() == ends.get(how, 0)
            assert terminal.mode_after == terminal.mode_before
            assert "STARTED" not in terminal.text
            assert ("nothing was started. 1" in terminal.text) is (how not in ends)
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


def test_keys_typed_before_the_question_do_not_answer_it(ask: Callable[..., Terminal]) -> None:
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
