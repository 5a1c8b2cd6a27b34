"""Attempts to get out of a box fail in each profile, and all succeed without a box."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box.attack import ABSENT, GUARDED, IN_BOX, OUTSIDE, prepared
from box.probes import PROBES
from box.world import SECRETS, SOCKETS
from nsm.jail import landlock
from nsmbox import profiles
from realjail import needs_bwrap
from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Generator

    from box.attack import Attack
    from box.world import World

pytestmark = [pytest.mark.jail, needs_bwrap]

STARTS = {
    "claude": ("claudebox", "--yes", "run"),
    "codex": ("nsm", "box", "--yes", "--profile", "codex", "--", "run"),
    "gemini": ("nsm", "box", "--yes", "--profile", "gemini", "--", "run"),
    "opencode": ("nsm", "box", "--yes", "--profile", "opencode", "--", "run"),
    "shell": ("nsm", "box", "--yes", "--profile", "shell", "--"),
    "safe": ("nsm", "box", "--yes", "--profile", "safe", "--"),
    "no network": ("nsm", "box", "--yes", "--net", "off", "--"),
}

BY_THE_HOST = {"writing-outside", "writing-outside-by-links", "signal-to-the-starters-group"}
"""Probes whose success the host tells: a box has files of its own under the same names."""

SCOPED = landlock.version() >= landlock.SCOPES_SOCKETS

INJECTED = """\
import errno, fcntl, sys, termios
try:
    for character in b"injected\\n":
        fcntl.ioctl(0, termios.TIOCSTI, bytes([character]))
    print("typed")
except OSError as error:
    print("refused:", errno.errorcode[error.errno])
"""

THEN_READ = 'name=$0; "$@"; echo "then"; read line; echo "read: $line"'


@pytest.fixture
def attack(world: World) -> Generator[Attack]:
    """Attack for probes that succeed, which changes it."""
    with prepared(world) as made:
        yield made


@pytest.fixture(scope="module")
def untouched(shared_world: World) -> Generator[Attack]:
    """Attack for probes that must not succeed."""
    with prepared(shared_world) as made:
        yield made


def test_each_probe_succeeds_without_a_box(attack: Attack) -> None:
    with attack.victim():
        told = attack.run()
    assert {name: each["got"] for name, each in told.items()}.keys() == (
        PROBES.keys() - {"signal-to-the-starters-group"}
    )
    for name in ("secrets-in-home", "secrets-by-another-way", "secrets-by-other-processes"):
        assert len(told[name]["got"]) >= len(SECRETS)
    assert set(SOCKETS) <= set(told["sockets"]["got"])
    assert len(attack.came_to_be()) == len(OUTSIDE)
    assert attack.guarded_changed() == list(GUARDED)
    assert attack.absent_made() == list(ABSENT)
    assert attack.kills_a_neighbour()


def test_there_is_no_other_profile() -> None:
    assert set(profiles.names()) == STARTS.keys() - {"no network"}


@pytest.mark.parametrize(
    "start",
    # Two that differ from codex in names alone run with the long tests.
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("gemini", "opencode") else name
        for name in STARTS
    ],
)
def test_no_probe_succeeds_in_a_box(untouched: Attack, start: str) -> None:
    with untouched.victim():
        told = untouched.run(*STARTS[start])
    got = {name: each["got"] for name, each in told.items() if "got" in each}
    expected = BY_THE_HOST & told.keys()
    if start != "no network":
        expected |= {"loopback"}
    if not SCOPED:
        expected |= {"abstract-socket"}
    assert got.keys() == expected, got
    assert untouched.came_to_be() == []
    assert untouched.guarded_changed() == []
    assert untouched.absent_made() == []


@pytest.mark.skipif(not SCOPED, reason="not here: the kernel cannot scope signals (Linux 6.12)")
def test_programs_beside_a_box_get_no_signal_of_it(untouched: Attack) -> None:
    assert not untouched.kills_a_neighbour(*STARTS["shell"])


def test_unguarded_files_can_be_changed_on_request(attack: Attack) -> None:
    told = attack.run(
        *("nsm", "box", "--yes", "--no-protect", "--"),
        probes=("writing-to-guarded", "making-absent"),
    )
    assert told["writing-to-guarded"]["got"] == list(GUARDED)
    assert attack.guarded_changed() == list(GUARDED)
    assert told["making-absent"]["got"] == list(ABSENT)
    assert attack.absent_made() == list(ABSENT)


def _typed_into_the_terminal(world: World, *before: str) -> str:
    """Return the input that the parent shell reads afterwards: `typed` comes from a person."""
    python = (*before, "env", IN_BOX) if before else (sys.executable,)
    command = world.command("sh", "-c", THEN_READ, "sh", *python, "-I", "-c", INJECTED)
    with Terminal(command, world.variables) as terminal:
        terminal.see("then")
        terminal.type("typed by a person\r")
        terminal.see("read: ")
        terminal.end()
        return terminal.text


@pytest.mark.parametrize("start", ["claude", "shell"])
def test_no_keys_are_pressed_from_inside(shared_world: World, start: str) -> None:
    shown = _typed_into_the_terminal(shared_world, *STARTS[start])
    assert "refused: EPERM" in shown
    assert "read: typed by a person" in shown


def test_keys_are_pressed_without_a_box(shared_world: World) -> None:
    switch = Path("/proc/sys/dev/tty/legacy_tiocsti")
    shown = _typed_into_the_terminal(shared_world)
    if switch.exists() and switch.read_text().strip() == "0":
        assert "refused: EIO" in shown  # the kernel's own, which a box does not count on
    else:
        assert "read: injected" in shown
