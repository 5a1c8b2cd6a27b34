"""Handover from a supervisor to the program that it becomes (`nsm reload`).

Descriptors stay open across the exec; a memory file describes them, and a variable has its number.

The exec stays beside the holder, since whoever started this process (systemd, a terminal, a
container whose first process it is) waits for its process id, systemd gives back what it keeps only
to a process that it starts, and a listening socket in the holder would, after a crash, have clients
wait for a supervisor that nobody starts.

After the exec there is no way back. So the installed program is tried first, while the supervisor
still runs: it loads all that it needs to serve, reads the configuration and all records that it
would get, and ends. Its standard input is a JSON object: `handover` is the version of the
handover's format, `records` a list of names and records. It prints its version, and then, in a line
of JSON, why it could not use which of them: `{"unreadable": {NAME: WHY}}`.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from nsm.dataclass import dataclass, field
from nsm.wire import decode as decoding
from nsmd.fdstore import records
from nsmd.fdstore.store import TRY_OPTION, DescriptorStore, Kept, Refill

log = logging.getLogger(__name__)

VARIABLE = "NSM_HANDED_OVER"
"""Variable with the number of the descriptor that describes the handover."""

VERSION = 1

MAX_BYTES = 16 << 20


LEFT = 75
"""Exit status if systemd keeps sessions for the next supervisor (EX_TEMPFAIL, sysexits.h): the unit
then starts one, unless it was told to stop this one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """State of the program that this process was before.

    Attributes:
        own: device and inode of its file, if this process removes it at the end; None if it belongs
            to a service manager.
        settled: systemd already has all of that.
    """

    listener: int
    own: tuple[int, int] | None
    lock: int
    kept: Kept = field(default_factory=dict[str, list[int]])
    settled: bool = False


def hand_over(handed: HandedOver) -> dict[str, str]:
    """Make the next program of this process inherit all of that.

    Returns:
        Variables for it.

    Raises:
        OSError: there is no descriptor left for the file.
    """
    told = {
        "version": VERSION,
        "pid": os.getpid(),
        "listener": handed.listener,
        "own": handed.own,
        "lock": handed.lock,
        "kept": {name: list(descriptors) for name, descriptors in handed.kept.items()},
        "settled": handed.settled,
    }
    note = os.memfd_create("nsm-handed-over", 0)
    with open(note, "wb", closefd=False) as file:
        file.write(json.dumps(told).encode())
    kept = {fd for fds in handed.kept.values() for fd in fds}
    passed = {0, 1, 2, note, handed.listener, handed.lock, *kept}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the directory's own
            os.set_inheritable(fd, fd in passed)
    return {VARIABLE: str(note)}


def take_over(variables: MutableMapping[str, str]) -> HandedOver | None:
    """Read the handover to this process, which no child inherits: it is removed from the variables.

    Returns:
        None if there is none, if it is for another process, or in another format.
    """
    number = variables.pop(VARIABLE, "")
    if not number.isdigit():
        return None
    try:
        told: dict[str, Any] = json.loads(_content(int(number)))
        if (told["version"], told["pid"]) != (VERSION, os.getpid()):
            raise ValueError(f"version {told['version']}, for process {told['pid']}")  # noqa: TRY301
        handed = HandedOver(
            listener=told["listener"],
            own=tuple(told["own"]) if told["own"] else None,
            lock=told["lock"],
            kept=told["kept"],
            settled=told.get("settled") is True,
        )
        for fd in (
            handed.listener,
            handed.lock,
            *(fd for fds in handed.kept.values() for fd in fds),
        ):
            os.set_inheritable(fd, False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("the handover of the program before this one is unreadable: %s", error)
        return None
    return handed


def _content(fd: int) -> bytes:
    try:
        return os.pread(fd, MAX_BYTES, 0)
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """End of this process that leaves all sessions to their holder, or to its next program.

    Attributes:
        listener: the listening socket; closed with the event loop.
        command: the next program, as installed by then.
    """

    listener: socket.socket
    own: tuple[int, int] | None
    lock: int
    store: DescriptorStore
    command: list[str]
    _held: list[int] = field(default_factory=list[int], init=False)

    def hold_place(self) -> None:
        """Make clients that come now wait for the next program; called before the listener is
        closed.
        """
        self._held.append(os.dup(self.listener.fileno()))

    def __call__(self, how: str) -> NoReturn:
        """End this process.

        Args:
            how: "reload" to become `command`; else this process ends.
        """
        try:
            self.store.settle()
            if how == "reload":
                self._become_the_next()
        except BaseException:
            log.exception("the supervisor is left as after a crash")
        # The store gives the sessions to the next supervisor. After a failure, a service manager
        # should start that at once.
        if how == "reload":
            os._exit(1)
        os._exit(LEFT if self.store.kind == "systemd" else 0)

    def crash(self, code: int) -> NoReturn:
        """End this process at once, as a kill would: nothing of what it keeps is ended."""
        with suppress(Exception):
            self.store.settle()
        os._exit(code)

    def _become_the_next(self) -> None:
        """Become the next program; returns only if none can be started."""
        handed = HandedOver(
            listener=self._held[0],
            own=self.own,
            lock=self.lock,
            kept=self.store.copies(),
            settled=self.store.kind == "systemd" and not self.store.problem,
        )
        variables = os.environ | hand_over(handed)
        for command in (self.command, [sys.executable, "-P", "-m", "nsmd"]):
            try:
                os.execve(command[0], command, variables)  # noqa: S606
            except OSError as error:
                log.critical("%s can't be started: %s", command[0], error)


TRY_TIMEOUT_S = 60.0
"""Time for the trial, which takes half a second; a machine that swaps, or is emulated, needs
longer.
"""

_MAX_SAID_CHARS = 2000


class SuccessorError(Exception):
    """The program would not start; the message has its own words."""


@dataclass(frozen=True, slots=True)
class SuccessorAnswer:
    """Answer of the next program: why it cannot use entries of the descriptor store, by name."""

    version: str
    unreadable: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorQuestion:
    """Entries that the next program would get, as it reads them."""

    handover: int
    records: tuple[tuple[str, str], ...]


def question_of(text: str) -> SuccessorQuestion | None:
    """Read what a supervisor asks its next program; None if it asks nothing.

    Raises:
        ValueError: it is no question.
    """
    return decoding.decode(SuccessorQuestion, json.loads(text)) if text.strip() else None


def answer_of(unreadable: Mapping[str, str]) -> str:
    """Answer the question of a supervisor, in a line."""
    return json.dumps({"unreadable": dict(unreadable)})


def _kept_records(refill: Refill) -> Iterator[tuple[str, str]]:
    for name, descriptors in refill():
        for data in filter(None, map(records.read_file, descriptors)):
            if records.is_record(data):
                yield name, data.decode("ascii", "replace")


async def try_successor(command: Sequence[str], refill: Refill = tuple) -> SuccessorAnswer:
    """Run the next program without letting it serve. `refill` yields what it would take over.

    Raises:
        SuccessorError: it does not start, or not in time.

    Cancellation: ends it.
    """
    import trio  # noqa: PLC0415 (the command line imports this module, and is quick without)

    question = {"handover": VERSION, "records": list(_kept_records(refill))}
    said = None
    try:
        with trio.move_on_after(TRY_TIMEOUT_S):
            said = await trio.run_process(
                [*command, TRY_OPTION],
                stdin=json.dumps(question).encode(),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                cwd="/",
                env=os.environ,
            )
    except OSError as error:
        raise SuccessorError(f"{command[0]} can't be started: {error.strerror}") from error
    if said is None:
        raise SuccessorError(f"it has not loaded within {TRY_TIMEOUT_S:g} s")
    if said.returncode != 0:
        words = said.stderr.decode(errors="replace").strip()[-_MAX_SAID_CHARS:]
        raise SuccessorError(words or f"it ends with {said.returncode}")
    version, _, rest = said.stdout.decode(errors="replace").strip().partition("\n")
    try:
        answer = decoding.decode(dict[str, dict[str, str]], json.loads(rest))
        return SuccessorAnswer(version, answer["unreadable"])
    except (ValueError, KeyError) as error:
        raise SuccessorError(f"{version} does not say what it can take over") from error
