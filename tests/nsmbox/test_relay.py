"""Signals to a box: the command in it hears of them first, and what does not end is ended.

With bwrap itself, but without all that a real box has around it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from processes import Watched, ending, tree

if TYPE_CHECKING:
    from pathlib import Path

BOXED = """\
import os, signal, sys
from nsmbox.start import relay
relay.GRACE_S, relay.SETTLE_S = float(sys.argv[1]), float(sys.argv[2])
heard = relay.prepare()
if child := relay.fork():
    relay.follow(child, heard)
words = ["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"]
words += ["--proc", "/proc", "--", "env", "--default-signal=TERM" + sys.argv[3], *sys.argv[4:]]
os.execvp("bwrap", ["bwrap", *words])
"""

ALL_DAY_S = 86_400.0

STAYS = "trap '' TERM HUP; sleep 1000 & echo up; wait"

TIDIES = {
    "bash": ("bash", "-c", "trap 'echo told; read x; exit 7' TERM HUP; echo up; sleep 1000 & wait"),
    "node": (
        "node",
        "-e",
        """
        for (const name of ["SIGTERM", "SIGHUP"]) process.on(name, () => {
            console.log("told");
            process.stdin.on("data", () => process.exit(7));
        });
        setInterval(() => {}, 1e6);
        console.log("up");
        """,
    ),
    "python": (
        sys.executable,
        "-c",
        """if True:
        import signal, sys
        def told(*_):
            print("told", flush=True)
            sys.stdin.readline()
            sys.exit(7)
        signal.signal(signal.SIGTERM, told)
        print("up", flush=True)
        while True: signal.pause()
        """,
    ),
}
"""Commands that tidy up when they are told to end, which takes them until somebody says so."""


def boxed(
    *command: str,
    grace_s: float = ALL_DAY_S,
    settle_s: float = 0.0,
    by: tuple[str, ...] = (),
    code: str = BOXED,
) -> subprocess.Popen[bytes]:
    """A command in a box.

    Args:
        by: what starts that.
        code: program that becomes the box.
    """
    return subprocess.Popen(
        [*by, sys.executable, "-c", code, str(grace_s), str(settle_s), ",HUP", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def says(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().decode() == f"{line}\n"


def answer(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go on\n")
    process.stdin.flush()


@pytest.mark.parametrize(
    ("name", "number"),
    [*((name, signal.SIGTERM) for name in TIDIES), ("node", signal.SIGHUP)],
)
async def test_the_command_has_time_to_tidy_up(name: str, number: signal.Signals) -> None:
    command = TIDIES[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"not here: {command[0]}")
    with ending(boxed(*command)) as box:
        says(box, "up")
        with Watched(tree(box.pid)) as processes:
            box.send_signal(number)
            says(box, "told")
            answer(box)
            assert box.wait() == 7
            await processes.all_ended()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_command_that_does_not_end_is_ended(number: signal.Signals) -> None:
    with ending(boxed("bash", "-c", STAYS, grace_s=0.1)) as box:
        says(box, "up")
        with Watched(tree(box.pid)) as processes:
            assert processes.alive == 5, "we, bwrap, its init, the shell, its child"
            box.send_signal(number)
            assert box.wait() == -number
            await processes.all_ended()


async def test_a_second_signal_ends_it_at_once() -> None:
    with ending(boxed(*TIDIES["bash"])) as box:
        says(box, "up")
        with Watched(tree(box.pid)) as processes:
            box.send_signal(signal.SIGTERM)
            says(box, "told")
            box.send_signal(signal.SIGTERM)
            assert box.wait() == -signal.SIGTERM
            await processes.all_ended()


def test_a_terminal_that_hangs_up_twice_is_in_no_hurry() -> None:
    with ending(boxed(*TIDIES["bash"])) as box:
        says(box, "up")
        box.send_signal(signal.SIGHUP)
        says(box, "told")
        box.send_signal(signal.SIGHUP)
        answer(box)
        assert box.wait() == 7


def test_a_box_that_ends_by_itself_meanwhile_has_its_exit_code(tmp_path: Path) -> None:
    """The command is gone, and cannot be told."""
    os.mkfifo(tmp_path / "fifo")
    nobody = f"""\
def tell(*_):
    relay.SETTLE_S = {ALL_DAY_S}
    with open({str(tmp_path / "fifo")!r}, "w") as fifo:
        fifo.write("end\\n")
    return False
relay._tell_command = tell
heard =\
"""
    code = BOXED.replace("heard =", nobody)
    script = f"trap '' TERM; echo up; read x <{tmp_path}/fifo; exit 7"
    with ending(boxed("bash", "-c", script, code=code)) as box:
        says(box, "up")
        box.send_signal(signal.SIGTERM)
        assert box.wait() == 7


def test_the_command_hears_a_signal_to_the_group_once() -> None:
    counts = "trap 'n=$((n+1)); echo told' TERM; echo up; while ! read x; do :; done; exit $n"
    with ending(boxed("bash", "-c", counts)) as box:
        says(box, "up")
        os.killpg(box.pid, signal.SIGTERM)
        says(box, "told")
        answer(box)
        assert box.wait() == 1


def test_timeout_signals_both_and_is_one_signal() -> None:
    """First the process, then the group: neither a second one to the command, nor in a hurry."""
    with ending(boxed(*TIDIES["bash"], settle_s=1.0)) as box:
        says(box, "up")
        box.send_signal(signal.SIGTERM)
        os.killpg(box.pid, signal.SIGTERM)
        says(box, "told")
        answer(box)
        assert box.wait() == 7


def test_ignored_signals_stay_ignored() -> None:
    done = subprocess.run(
        ["nohup", sys.executable, "-c", BOXED, "1", "0", "", "grep", "^Sig", "/proc/self/status"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    masks = dict(line.split(":\t") for line in done.stdout.splitlines())
    assert int(masks["SigIgn"], 16) & 1 << (signal.SIGHUP - 1)
    assert int(masks["SigBlk"], 16) == 0


def test_a_box_that_is_stopped_stops_whoever_waits_for_it() -> None:
    with ending(boxed("bash", "-c", "echo up; read x; exit 3")) as box:
        says(box, "up")
        _, bwrap, *_ = tree(box.pid)
        os.kill(bwrap, signal.SIGSTOP)
        _, status = os.waitpid(box.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        box.send_signal(signal.SIGCONT)
        answer(box)
        assert box.wait() == 3


def test_a_box_goes_on_with_whoever_waits_for_it() -> None:
    """Both were stopped from outside, and the one that waits is woken first."""
    with ending(boxed("bash", "-c", "echo up; read x; exit 3")) as box:
        says(box, "up")
        _, bwrap, *_ = tree(box.pid)
        box.send_signal(signal.SIGSTOP)
        os.waitpid(box.pid, os.WUNTRACED)
        os.kill(bwrap, signal.SIGSTOP)
        box.send_signal(signal.SIGCONT)
        answer(box)
        assert box.wait(120) == 3


async def test_whoever_started_it_dies_and_the_box_is_told() -> None:
    by = ("bash", "-c", '"$@" <&3 & wait', "bash")
    with ending(
        boxed(*TIDIES["bash"], by=("bash", "-c", 'exec 3<&0; exec "$@"', "x", *by))
    ) as starter:
        says(starter, "up")
        with Watched(tree(starter.pid)) as processes:
            starter.kill()
            says(starter, "told")
            assert starter.stdin is not None
            starter.stdin.close()
            await processes.all_ended()
