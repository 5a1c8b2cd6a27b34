"""The starter in the box: signals, the proxy's socket, what it becomes, and who waits for it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import pytest

from nsmbox.start import inside
from processes import Watched, ending, tree

STARTER = (sys.executable, "-I", "-S", inside.__file__)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STARTER, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_starter_becomes_the_command() -> None:
    done = run("--", "sh", "-c", 'echo "$1" $$; exit 7', "sh", "a b")
    assert done.returncode == 7
    assert done.stdout.startswith("a b ")


def test_the_command_has_its_signals_whatever_the_launcher_has_set_aside() -> None:
    def set_aside() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)

    ignored = subprocess.run(
        [*STARTER, "--", "grep", "^SigIgn", "/proc/self/status"],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=set_aside,
    ).stdout.split()[1]
    aside = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGQUIT))
    assert int(ignored, 16) & aside == 0


@pytest.mark.parametrize(
    ("arguments", "exit_code", "told"),
    [
        ((), 2, "usage"),
        (("--",), 2, "usage"),
        (("true",), 2, "usage"),
        (("--proxy", "/s", "--", "true"), 2, "usage"),
        (("--proxy", "/s", "x", "--", "true"), 2, "usage"),
        (("--", "no-such-program"), 127, "no such program in the box"),
        (("--", "/etc/passwd"), 126, "cannot be started in the box: Permission denied"),
        (("--proxy", "/nowhere/proxy.sock", "0", "--", "true"), 1, "/nowhere/proxy.sock: No such"),
    ],
)
def test_failures_of_the_starter_are_told(
    arguments: tuple[str, ...], exit_code: int, told: str
) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_directory_of_path_that_may_not_be_read_has_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-such-program").mkdir()  # the same error as of a closed directory, for root too
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = run("--", "no-such-program")
    assert done.returncode == 127
    assert "no such program in the box" in done.stderr


class Supervisor:
    """Takes one listening socket, answers, and serves one connection on it."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(1)
        self._socket.settimeout(20)
        self._answer = answer
        self.address = ("", 0)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        with self._socket.accept()[0] as box:
            _, descriptors, _, _ = socket.recv_fds(box, 16, 4)
            with socket.socket(fileno=descriptors[0]) as listener:
                self.address = listener.getsockname()
                box.sendall(self._answer)
                if self._answer == inside.TAKEN:
                    listener.settimeout(20)
                    with listener.accept()[0] as client:
                        client.sendall(b"by proxy\n")


CLIENT = """
import os, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) as connection:
    print(connection.makefile().read(), os.listdir("/proc/self/fd"))
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_a_proxy_is_served_on_the_boxs_loopback_without_a_process_there(tmp_path: Path) -> None:
    place, port = tmp_path / "proxy.sock", free_port()
    command = (sys.executable, "-IS", "-c", CLIENT, str(port))
    with Supervisor(place, inside.TAKEN) as supervisor:
        done = run("--proxy", str(place), str(port), "--", *command)
    assert done.stderr == ""
    assert done.stdout.startswith("by proxy\n")
    assert supervisor.address == ("127.0.0.1", port)
    # 0, 1, 2, the connection and the directory: neither socket of the starter.
    assert done.stdout.count("'") == 2 * 5


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"the box has ended\n", "the box has ended"),
        (b"", "closed without an answer"),
        (b"ok", "ok"),
    ],
)
def test_without_a_proxy_nothing_runs(answer: bytes, told: str, tmp_path: Path) -> None:
    place = tmp_path / "proxy.sock"
    with Supervisor(place, answer):
        done = run("--proxy", str(place), str(free_port()), "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr
    assert "nsm doctor" in done.stderr


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        done = run("--proxy", str(tmp_path / "proxy.sock"), str(port), "--", "true")
    assert done.returncode == 1
    assert f"port {port} of the loopback: Address already in use" in done.stderr


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
    ("name", "number"), [*((name, signal.SIGTERM) for name in TIDIES), ("node", signal.SIGHUP)]
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
