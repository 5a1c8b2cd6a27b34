"""Fate of the bridge's programs, and of calls for them, when something ends.

Each program is started once at most, everything that it has started ends with the call, and the
audit has a start and an end of each.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import restricted_mounts
from e2e_clients import Mcp, Task, replaced
from e2e_support import END_TIMEOUT_S, program, supervisor, wait_gone
from nsm.wire.errors import AuditFailedError, DrainingError, FateUnknownError, ShuttingDownError
from nsm.wire.host import ProgramResult
from nsm.wire.status import ReloadReport
from nsmd.bridge import ledger

if TYPE_CHECKING:
    import nsm
    from e2e_support import Supervisor

pytestmark = pytest.mark.usefixtures("no_autostart")

CONFIG = """\
[bridge]
enabled = true

[drain]
timeout_seconds = {drain_s}

[pool]
max_spares = 0
"""

ROOM_BYTES = 256 * 1024

ON, BRIEF = CONFIG.format(drain_s=60), CONFIG.format(drain_s=0)


class Tools:
    """Definitions in a supervisor's directory, and a program that says when it runs.

    It starts another one, in a session of its own, which `stubborn` has ignore SIGTERM; writes down
    the process ids of all; and waits for a word. Its first argument is a name for this one start.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        (base / "config" / "nsm" / "tools").mkdir(parents=True, mode=0o700)
        self.define("quick", "echo quick")
        self.define(
            "waits",
            f"""\
cd {base}
echo $1 >>starts
echo out
mkfifo $1.forked
[ "$2" != stubborn ] || trap '' TERM
setsid sh -c "echo \\$\\$ >$1.forked; exec sleep 1000" &
trap - TERM
read other <$1.forked
echo $$ $other >$1.began
read word <$1.go
echo $word
kill -9 $other
""",
        )

    def define(self, name: str, body: str) -> None:
        path = self._base / name
        path.write_text(f"#!/bin/sh\n{body}")
        path.chmod(0o700)
        (self._base / "config" / "nsm" / "tools" / f"{name}.md").write_text(
            f"---\nname: {name}\ndescription: It {name}.\ncommand: {path}\n---\n"
        )

    def expect(self, *names: str) -> None:
        for name in names:
            for kind in ("began", "go"):
                os.mkfifo(self._base / f"{name}.{kind}")

    def began(self, name: str) -> list[int]:
        """Wait until that one runs; descriptors of its processes."""
        descriptor = os.open(self._base / f"{name}.began", os.O_RDWR)  # opens at once
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            assert poll.poll(END_TIMEOUT_S * 1000), f"{name} was not started"
            pids = os.read(descriptor, 100).split()
        finally:
            os.close(descriptor)
        return [os.pidfd_open(int(pid)) for pid in pids]

    def go(self, name: str) -> None:
        """Let a waiting program continue."""
        (self._base / f"{name}.go").write_text("done\n")

    @property
    def starts(self) -> list[str]:
        return (self._base / "starts").read_text().split()

    def story(self, *, root: str = "") -> list[tuple[str, str, str | None]]:
        """Read the audit log: events, the programs' first arguments, and the reasons for stopping
        them."""
        path = Path(f"{root}{self._base}/state/nsm/audit.log")
        lines = list(ledger.lines(str(path)))
        names = {
            line["id"]: "".join(line["arguments"][:1]) for line in lines if "arguments" in line
        }
        return [(line["event"], names[line["id"]], line.get("why_stopped")) for line in lines]

    def beside(self) -> list[str]:
        return [each.name for each in (self._base / "state" / "nsm").glob("audit.log*")]


def configured(directory: Path, config: str) -> Tools:
    directory.chmod(0o700)
    tools = Tools(directory)
    (directory / "config" / "nsm" / "config.toml").write_text(config)
    return tools


def asking(it: Supervisor, *arguments: str) -> Task:
    """Somebody who waits for a program."""

    def ask() -> object:
        with it.client() as client:
            return client.bridge.run("waits", arguments)

    return Task(ask)


def result(task: Task) -> ProgramResult:
    told = task.outcome()
    assert isinstance(told, ProgramResult), told
    return told


def wait_until_refused(client: nsm.Client) -> None:
    """Run programs until the supervisor refuses to start any more."""
    with suppress(DrainingError, ShuttingDownError):
        while True:
            client.bridge.run("quick")


@pytest.mark.slow
def test_a_killed_supervisor_takes_its_programs_along_and_none_is_started_twice(
    short_dir: Path,
) -> None:
    tools = configured(short_dir, ON)
    tools.expect("a", "b")
    with ExitStack() as stack:
        first = stack.enter_context(supervisor(short_dir))
        task = asking(first, "a", "stubborn")
        processes = tools.began("a")
        mcp = Mcp(first, stack)
        mcp.call("execute", {"program": "waits", "args": ["b"]}, 1)
        processes += tools.began("b")
        assert [event for event, *_ in tools.story()] == ["start", "start"]
        with replaced(first):
            assert isinstance(task.outcome(), FateUnknownError), task.result
            answer = mcp.answer()["result"]
            assert answer["isError"]
            assert "was started" in answer["content"][0]["text"]
            mcp.end()
            wait_gone(processes)
    assert sorted(tools.starts) == ["a", "b"]
    assert sorted(tools.story()) == [("start", "a", None), ("start", "b", None)]
    assert tools.beside() == ["audit.log"]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("reload", marks=pytest.mark.slow),
        pytest.param("SIGTERM", marks=pytest.mark.slow),
        "drain",
    ],
)
def test_running_programs_may_end_before_the_supervisor_does(short_dir: Path, how: str) -> None:
    tools = configured(short_dir, ON)
    tools.expect("a")
    with supervisor(short_dir) as it, it.client() as client, it.client() as other:
        task = asking(it, "a")
        processes = tools.began("a")
        match how:
            case "reload":
                ending = Task(other.reload)
            case "SIGTERM":
                ending = Task(lambda: it.process.send_signal(signal.SIGTERM))
            case _:
                ending = Task(lambda: other.drain(timeout_s=60))
        wait_until_refused(client)
        tools.go("a")
        told = result(task)
        assert (told.exit_code, told.why_stopped, told.stdout) == (0, None, "out\ndone\n")
        assert not isinstance(ending.outcome(), Exception), ending.result
        wait_gone(processes)
        if how == "reload":
            assert client.bridge.run("quick").stdout == "quick\n"
        elif how == "drain":
            client.undrain()
            assert client.bridge.run("quick").stdout == "quick\n"
        else:
            assert it.process.wait(END_TIMEOUT_S) == 0
    assert tools.starts == ["a"]
    assert ("end", "a", None) in tools.story()
    events = [event for event, *_ in tools.story()]
    assert events.count("start") == events.count("end")
    assert "refused" in events
    assert tools.beside() == ["audit.log"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reload", "shutdown"])
def test_programs_that_do_not_end_in_time_are_ended_with_all_they_started(
    short_dir: Path, how: str
) -> None:
    tools = configured(short_dir, BRIEF)
    tools.expect("a")
    with supervisor(short_dir) as it, it.client() as client:
        task = asking(it, "a")
        processes = tools.began("a")
        if how == "reload":
            waits: list[ReloadReport] = []
            client.reload(waits.append)
            (report,) = waits
            assert [each.program for each in report.waits_for] == ["waits"]
            assert report.waits_s == 0
        else:
            client.shutdown()
            assert it.process.wait(END_TIMEOUT_S) == 0
        wait_gone(processes)
        told = task.outcome()
        assert isinstance(told, ProgramResult | ShuttingDownError), told
        if isinstance(told, ProgramResult):
            assert told.why_stopped == "shutdown"
    assert tools.story() == [("start", "a", None), ("end", "a", "shutdown")]
    assert tools.beside() == ["audit.log"]


@pytest.mark.slow
@pytest.mark.jail
def test_where_nothing_can_be_written_down_nothing_starts_and_code_runs_on(short_dir: Path) -> None:
    tools = configured(short_dir, ON)
    tools.expect("a", "b")
    (short_dir / "state").mkdir(mode=0o700)
    within = restricted_mounts.command(f"tmpfs:{ROOM_BYTES}:{short_dir / 'state'}")
    with supervisor(short_dir, within=within) as it, it.client() as client:
        root = f"/proc/{it.pid}/root"
        filler = Path(f"{root}{short_dir}/state/filler")
        task = asking(it, "a")
        processes = tools.began("a")
        with filler.open("wb", 0) as file, pytest.raises(OSError, match="No space left"):
            any(file.write(bytes(1 << 16)) == 0 for _ in range(ROOM_BYTES))
        long = ["x" * 5000]  # not into what is left of the last page
        with pytest.raises(AuditFailedError, match="No space left"):
            client.bridge.run("quick", long)
        with pytest.raises(AuditFailedError, match="not found"):
            client.bridge.run("unknown", long)
        assert client.run("echo $((41 + 1))", env="bash").stdout == "42\n"
        tools.go("a")
        assert result(task).exit_code == 0
        wait_gone(processes)
        filler.unlink()
        assert client.bridge.run("quick").stdout == "quick\n"
        ends = [each for each in tools.story(root=root) if each[1] == "a"]
        assert ends == [("start", "a", None), ("end", "a", None)]


@pytest.mark.slow
def test_the_program_of_a_client_that_is_killed_is_ended(short_dir: Path) -> None:
    tools = configured(short_dir, ON)
    tools.expect("a")
    with supervisor(short_dir) as it:
        with subprocess.Popen(
            [program("nsm"), "bridge", "run", "waits", "a"],
            env=it.variables | {"NSM_AUTOSTART": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        ) as asker:
            processes = tools.began("a")
            asker.kill()
        wait_gone(processes)
    assert tools.story() == [("start", "a", None), ("end", "a", "cancelled")]
