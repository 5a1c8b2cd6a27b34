"""Rules for sending a call once more, over another connection, after one was lost.

An answer must come once, and what a call does must be done once. So code goes out under an id, by
which a later supervisor knows it; what only looks is asked again; and whatever changes something
is not sent twice, unless it cannot have arrived. Pure, and imported by every client.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm._version import program_version
from nsm.hosts.place import leads_elsewhere
from nsm.wire.errors import (
    CannotStartError,
    DisconnectedError,
    FateUnknownError,
    NsmError,
    ResultLostError,
)
from nsm.wire.messages import RESUMES, Hello

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from nsm.client.steps import Steps

    T = TypeVar("T")


MAX_LOSSES = 100
"""Connections that one call may lose. A call that brings its supervisor down each time must not
do so for ever."""

RUNS = {
    "run": "execution_id",
    "run_in": "execution_id",
    "session_fork": "execution_id",
    "session_open": "execution_id",
    "undo": "execution_id",
    "job_start": "execution_id",
    "bridge_run": "call_id",
}
"""Operations that do something once, under an id, and the argument that is this id."""

MAX_RESTARTS = 20
"""Attempts at a transfer or a save whose connections are lost. One that takes longer than the
supervisors live would begin again for ever."""

_LOOKS = frozenset(
    {
        "boxes",
        "bridge_help",
        "bridge_programs",
        "change",
        "changes",
        "check",
        "complete",
        "env_add",
        "env_found",
        "env_list",
        "env_log",
        "env_use",
        "envs",
        "events",
        "file_entries",
        "file_get",
        "file_mkdir",
        "file_open",
        "file_stat",
        "find",
        "http",
        "inspect",
        "job_list",
        "job_read",
        "job_resize",
        "job_stop",
        "job_write",
        "logs",
        "metrics",
        "ping",
        "pool",
        "ports",
        "fresh_open",
        "result",
        "run_write",
        "secrets",
        "session_keep",
        "sessions",
        "stats",
        "status",
    }
)
"""Operations that may be carried out twice: what `job_write` sends has an id, and what `run_write`
sends an offset; `env_add` says what there should be. `logs` and `events` start from the beginning:
`RECONNECTED` tells the caller, who can then leave out what comes twice."""

_OF_CONNECTION = frozenset(
    {
        "file_close",
        "file_events",
        "file_read",
        "file_unwatch",
        "file_write",
        "fresh_close",
        "fresh_next",
    }
)
"""Operations on what a connection has opened: another one has not, or something else."""

RECONNECTED = "reconnected"
"""Name of an event that the client itself gives to `on_event`: the connection was lost, and the
call goes on over another one. Output may be missing before it."""


def hello(*, name: str, scope: str, project: str | None = None, path: str | None = None) -> Hello:
    """Introduction of a client to the supervisor.

    Args:
        path: path of the socket, if a lost connection is opened again.
    """
    return Hello(
        name=name,
        program_version=program_version(),
        scope=scope,
        # On this machine, only the end of a client or of the supervisor ends a connection.
        capabilities=(RESUMES,) if path is not None and leads_elsewhere(path) else (),
        project=project or "",
    )


def lease(session: str) -> tuple[str, dict[str, Any]]:
    """The operation by which a session ends with the connection, and its arguments."""
    return "session_keep", {"target": session, "ends_with_client": True}


class LostError(DisconnectedError):
    """The connection ended without a word, as that of a supervisor that was killed.

    Attributes:
        arrived: the kernel had got the whole request.
        instance: that of the supervisor at the other end; empty if it did not say.
    """

    def __init__(self, *, arrived: bool = True, instance: str = "") -> None:
        super().__init__(
            "the supervisor closed the connection before it answered",
            hint="It was ended or has crashed; its log says more. Try again to start another.",
        )
        self.arrived = arrived
        self.instance = instance


class CutOffError(DisconnectedError):
    """A call lost its connection, and must not be sent again by itself. The next call connects
    again, so what it belongs to may be begun again.
    """


CUT_OFF = (CutOffError, FateUnknownError, ResultLostError)
"""Errors after which steps that may be repeated are begun again."""


def begun_again(begin: Callable[[], Steps[T]]) -> Steps[T]:
    """Carry out steps that may be repeated; from their beginning again if they are cut off."""
    for _ in range(MAX_RESTARTS):
        with suppress(CutOffError):
            return (yield from begin())
    return (yield from begin())


def done_again(do: Callable[[], T], *, after: tuple[type[NsmError], ...] = CUT_OFF) -> T:
    """Call a function that may be repeated; again if it is cut off.

    Args:
        after: the errors after which it is called again.
    """
    for _ in range(MAX_RESTARTS - 1):
        with suppress(*after):
            return do()
    return do()


class RetriedCall:
    """One call, over as many connections as it takes.

    Attributes:
        args: to be sent now.
        losses: connections that it has lost.
        arrived: it may have been carried out, or begun.
    """

    __slots__ = ("_op", "_sent_to", "args", "arrived", "losses")

    def __init__(self, op: str, args: dict[str, Any]) -> None:
        if op in RUNS and RUNS[op] not in args:
            args = {**args, RUNS[op]: os.urandom(16).hex()}
        self._op = op
        self._sent_to: set[str] = set()
        self.arrived = False
        self.args = args
        self.losses = 0

    def __repr__(self) -> str:
        return f"<RetriedCall of {self._op}, {self.losses} connections lost>"

    def lost(self, error: LostError) -> None:
        """Note that its connection was lost.

        Raises:
            CutOffError: it must not be sent again.
            LostError: it was sent too often.
        """
        self.losses += 1
        self.arrived = self.arrived or error.arrived
        if error.arrived:
            self._sent_to.add(error.instance)
        if self.losses > MAX_LOSSES:
            raise error
        if self._op not in _OF_CONNECTION and (not self.arrived or self._op in _LOOKS):
            return
        if self._op in _OF_CONNECTION or self._op == "file_put":
            raise CutOffError(
                "the supervisor ended, or the connection to it, while a file was on its way",
                hint="Files appear whole or not at all: see whether it is there, and copy it again "
                "if it is not.",
            ) from error
        if self._op not in RUNS:
            raise CutOffError(
                f"the supervisor ended before it answered, and whether {self._op!r} was carried "
                "out is unknown",
                hint="See what is there now, then try again.",
            ) from error
        # A supervisor that is the only one it was sent to knows whether it ever arrived.
        only = next(iter(self._sent_to)) if len(self._sent_to) == 1 else ""
        self.args = {**self.args, "again": True, "sent_to": only}
        if not only:
            del self.args["sent_to"]

    def given_up(self, error: CannotStartError) -> CannotStartError:
        """Add to an error what became of the call: there is no supervisor that could tell."""
        if self._op not in RUNS:
            return error
        if self._op.startswith("session_"):
            fate = (
                "Whether a session was made is unknown" if self.arrived else "No session was made"
            )
        else:
            fate = "Whether the code was run is unknown" if self.arrived else "The code was not run"
        end = "" if error.message.endswith(".") else "."
        return CannotStartError(f"{error.message}{end} {fate}.", hint=error.hint, data=error.data)
