"""Run of a program under a monitor, to its end or its limit, with the variables that it gets."""

from __future__ import annotations

import json
import logging
import os
import pwd
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import trio

from nsm.wire.errors import BadProgramError
from nsmd.bridge.commands import Command
from nsmd.bridge.monitor import STEP_S, SWEEP_S
from nsmd.bridge.programs import OnLine, Program, ProgramEnd
from nsmd.host.child_processes import MARGIN_S, MonitoredProcess
from nsmd.host.processes import processes, send_signals
from nsmd.model.values import StreamName

log = logging.getLogger(__name__)

_REPORT_BYTES = 1024 * 1024
"""Largest size of a report's other fields."""

_BYTES_PER_KEPT_BYTE = 6
"""Largest factor in JSON: a control character takes six bytes, and invalid UTF-8 three."""

Why = Literal["cancelled", "shutdown"]
WhyStopped = Literal["timeout", "cancelled", "shutdown"]

PATH = (
    # The first three: NixOS, and Nix elsewhere.
    "/run/wrappers/bin:/run/current-system/sw/bin:/nix/var/nix/profiles/default/bin"
    ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)
"""PATH of programs: the system's own. To pass on the supervisor's, a definition names `PATH` in
`env`.
"""

LANGUAGE = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LC_TIME", "TZ")
"""Passed on if set: language and time zone of the program."""


async def run(
    command: Command,
    program: Program,
    arguments: Sequence[str],
    *,
    variables: Mapping[str, str],
    output_bytes: int,
    on_line: OnLine,
    stop: Stop,
    step_s: float = STEP_S,
) -> ProgramEnd:
    """Run a program to its end, with these variables as its whole environment; the caller closes
    the command. A `BadProgramError` says that it was not started.

    Of each of its two outputs, head and tail of so many bytes are kept. `on_line` gets its output
    without line ends, a long line in pieces of `monitor.PIECE_CHARS`; for a flood, one line says
    how many were left out. Once `stop` asks for its end, it has `step_s`.

    Cancellation stops it, and returns when it and all that it started are gone: after milliseconds,
    or a little over `step_s` if it ignores signals.
    """
    try:
        held = _start(command, program, arguments, variables, output_bytes, step_s)
    except OSError as error:
        why = f"there is no process for it: {error.strerror}"
        raise _not_started(program, why) from error
    try:
        return await _Run(held, program, on_line).to_its_end(stop)
    finally:
        await held.end()


def _start(
    command: Command,
    program: Program,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    output_bytes: int,
    step_s: float,
) -> MonitoredProcess:
    """Start a monitor, with an order for `monitor.Order`."""
    order = {
        "path": _plain(os.fsencode(command.path)),
        "descriptor": command.fd,
        "script": command.script,
        "ways": [[_plain(os.fsencode(path)), way] for path, way in command.ways],
        "arguments": [
            _plain(os.fsencode(command.path)),
            *(_plain(argument.encode()) for argument in arguments),
        ],
        "variables": {
            _plain(os.fsencode(name)): _plain(os.fsencode(value))
            for name, value in variables.items()
        },
        "directory": _plain(os.fsencode(program.cwd or variables.get("HOME") or "/")),
        "output_bytes": output_bytes,
        "step_s": step_s,
    }
    with open(os.memfd_create("order", os.MFD_CLOEXEC), "wb") as file:
        file.write(json.dumps(order).encode())
        file.seek(0)
        return MonitoredProcess.start(
            "nsmd.bridge.monitor",
            [str(file.fileno())],
            inherited=[file.fileno(), command.fd],
            variables={},
            stop_s=step_s + SWEEP_S + MARGIN_S,
            max_report_bytes=_REPORT_BYTES + 2 * _BYTES_PER_KEPT_BYTE * output_bytes,
            what=f"program {program.name}",
        )


def _plain(data: bytes) -> str:
    """Any bytes as a JSON text."""
    return data.decode("latin-1")


def _not_started(program: Program, why: str) -> BadProgramError:
    return BadProgramError(
        f"Program {program.name!r} was not started: {why}.",
        hint=f"See {program.source} and `nsm bridge check`.",
        data={"program": program.name},
    )


class _Run:
    """Reports of a monitor so far."""

    def __init__(self, held: MonitoredProcess, program: Program, on_line: OnLine) -> None:
        self._held = held
        self._program = program
        self._on_line = on_line
        self._why: WhyStopped | None = None
        self._limit = trio.CancelScope()
        self._pid = 0

    async def to_its_end(self, stop: Stop) -> ProgramEnd:
        """Read reports until the program has ended."""
        end: Mapping[str, Any] | None = None
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_asked, stop)
            with self._limit:
                while (report := await self._held.next_report()) is not None:
                    if "told" in report:
                        self._pass_on(report["told"])
                        await trio.lowlevel.checkpoint()  # a flood must leave time for others
                    elif "started" in report:
                        self._pid = report["started"]
                        nursery.start_soon(self._stop_in_time)
                    else:
                        end = report["end"]
                        break
            nursery.cancel_scope.cancel()
        if end is None:
            return await self._unwatched(trio.current_time() - began_s)
        if "not_started" in end:
            raise _not_started(self._program, end["not_started"])
        facts = {key: value for key, value in end.items() if key != "stopped"}
        return ProgramEnd(**facts, why_stopped=self._why if end["stopped"] else None)

    def _pass_on(self, told: Sequence[tuple[StreamName, str | int]]) -> None:
        for stream, line in told:
            self._on_line(stream, line if isinstance(line, str) else left_out(line))

    async def _stop_when_asked(self, stop: Stop) -> None:
        self._end(await stop.wait())

    async def _stop_in_time(self) -> None:
        await trio.sleep(self._program.timeout_s)
        self._end("timeout")

    def _end(self, why: WhyStopped) -> None:
        if self._why is None:
            self._why = why
            self._limit.deadline = trio.current_time() + self._held.stop_s
            self._held.stop()

    async def _unwatched(self, duration_s: float) -> ProgramEnd:
        """Handle a monitor that ended without a report: somebody killed it."""
        if not self._pid:
            raise _not_started(self._program, "the process that is to watch it ended unexpectedly")
        log.error("%r ended unexpectedly; its program is killed", self._held)
        await trio.to_thread.run_sync(_kill_session, self._pid)
        return ProgramEnd(
            exit_code=None,
            signal=signal.SIGKILL,
            why_stopped=self._why,
            stderr="[nsm: the process that watched it ended unexpectedly, so it was killed; its "
            "output is lost]\n",
            duration_s=duration_s,
        )


def left_out(lines: int) -> str:
    """Make the line that stands for lines that were left out."""
    return f"[... {lines} {'line' if lines == 1 else 'lines'} left out ...]"


def _kill_session(leader: int) -> None:
    """Kill the processes of a program's session; the kernel has killed the program itself."""
    for process in processes():
        if process.session == leader:
            with suppress(ProcessLookupError, PermissionError):
                send_signals(process, signal.SIGKILL)


class Stop:
    """Request to stop, made once or several times; the first one has the reason."""

    def __init__(self) -> None:
        self.why: Why | None = None
        self._asked = trio.Event()

    def __repr__(self) -> str:
        return f"<Stop {self.why or 'not yet'}>"

    def ask(self, why: Why) -> None:
        """Ask the program to end."""
        if self.why is None:
            self.why = why
        self._asked.set()

    async def wait(self) -> Why:
        """Wait for the request."""
        await self._asked.wait()
        assert self.why is not None
        return self.why


def variables_of(program: Program, own: Mapping[str, str]) -> dict[str, str]:
    """All variables of a program: a fixed minimum, and those that its definition names."""
    return {**least(own), **{name: own[name] for name in program.env if name in own}}


def least(own: Mapping[str, str]) -> dict[str, str]:
    """Make the variables that every program has."""
    user = _user()
    found = {
        "PATH": PATH,
        "HOME": own.get("HOME") or (user.pw_dir if user else "/"),
        "USER": user.pw_name if user else str(os.getuid()),
        "LOGNAME": user.pw_name if user else str(os.getuid()),
        "SHELL": (user.pw_shell if user else "") or "/bin/sh",
        "TERM": "dumb",
        "LANG": "C.UTF-8",
    }
    found.update((name, own[name]) for name in LANGUAGE if own.get(name))
    return found


def _user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:  # in containers
        return None
