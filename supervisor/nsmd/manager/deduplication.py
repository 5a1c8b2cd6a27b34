"""Deduplication of code that clients send again after they lost a connection.

Code must run only once. If the execution is under way or remembered, it is the answer. If an
earlier supervisor got the code, it runs now only if it is known that it never ran; else the client
learns what is known.
"""

from __future__ import annotations

import os

from nsm.wire.errors import BadRequestError, FateUnknownError, NsmError, ResultLostError
from nsmd.fdstore.fates import Fates
from nsmd.model import names
from nsmd.model.values import RunRequest
from nsmd.sessions.ended import ExecutionIndex
from nsmd.sessions.execution import Execution

_CHECK = "Check what it has done (its variables, its files) before you run it again."


class Deduplication:
    """Executions by the ids that clients gave them.

    Args:
        executions: executions that this supervisor got or took over.
        fates: knowledge about executions of earlier supervisors.

    Attributes:
        instance: name of this supervisor, from its start to its end or reload.
    """

    def __init__(self, executions: ExecutionIndex, fates: Fates) -> None:
        self.instance = os.urandom(8).hex()
        self._executions = executions
        self._fates = fates

    def find(
        self, request: RunRequest, name: str | None, scope: str | None = None
    ) -> Execution | None:
        """Find the execution that a request means; None if the code never ran and should run now.

        Args:
            request: request with `again`.
            name: name of its session; None for a one-shot.
            scope: scope of that session; None for the client's own.

        Raises:
            BadRequestError: it has no execution id.
            ResultLostError: it ran, and its result is lost.
            FateUnknownError: it may have run.
        """
        wanted, client = _id_of(request), request.client
        scope = client.scope if scope is None else scope
        for execution in (self._executions.get(wanted), *self._executions.told_of(wanted)):
            if execution is None or not _is_of(execution, request):
                continue
            if _is_in(execution, request.session, scope):
                return execution
        if request.sent_to == self.instance and self._executions.never_had(wanted):
            return None  # it was on its way here when the connection broke
        fate = self._fates.of(wanted, scope, name)
        if fate == "done":
            raise _lost(wanted)
        if fate == "unknown":
            raise _unknown(wanted)
        return None

    def find_of_gone(self, request: RunRequest) -> Execution:
        """Find the execution if its session is gone: then nothing can run now.

        Raises:
            BadRequestError, ResultLostError, FateUnknownError: as `find`.
        """
        wanted = _id_of(request)
        execution = self._executions.get(wanted)
        if execution is not None and _is_of(execution, request):
            return execution
        raise _lost(wanted) if wanted in self._fates.done else _unknown(wanted)

    def job_of_gone(self, request: RunRequest) -> NsmError:
        """Make the error for a program that was to be started in a session that is gone: that may
        have happened.
        """
        return _unknown(_id_of(request))

    def new_id(self, wanted: str | None, name: str | None, scope: str) -> str:
        """Check the id that a client gives to new code, or make one.

        Args:
            wanted: the client's id; None to make one.
            name, scope: name and scope of the session for the code.

        Raises:
            BadRequestError: the id is invalid or taken.
        """
        if wanted is None:
            return os.urandom(8).hex()
        if not 1 <= len(wanted) <= 128 or not wanted.isprintable():
            raise BadRequestError("execution_id must be 1 to 128 printable characters.")
        claimed = self._executions.get(wanted)
        if claimed is not None and claimed.earlier and not _is_in(claimed, name, scope):
            # An agent that was taken over may claim ids that it never got, future ones included.
            # That must not keep code out of other sessions.
            self._executions.rename(claimed, f"{claimed.session.id}.{wanted}")
        if wanted in self._executions:
            raise BadRequestError(
                f"Execution {wanted!r} exists already; the code was not run again.",
                hint="Ask for its result, or choose another id.",
            )
        return wanted


def _is_of(execution: Execution, request: RunRequest) -> bool:
    """Return whether the same client sent both."""
    first, again = execution.request.client, request.client
    return names.owner_of(first.scope) == names.owner_of(again.scope)


def _is_in(execution: Execution, name: str | None, scope: str) -> bool:
    """Return whether an execution is in the expected session. A reattached agent reports its
    executions itself, and must not answer for another session's.
    """
    tenancy = execution.session.tenancy
    if tenancy is None or tenancy.scope != scope:
        return False
    return name in (tenancy.name, names.NEW)


def _id_of(request: RunRequest) -> str:
    if request.execution_id is None:
        raise BadRequestError(
            "`again` says that code was sent before, and nothing says under which id.",
            hint="Send the same `execution_id` both times.",
        )
    return request.execution_id


def _lost(execution_id: str) -> ResultLostError:
    return ResultLostError(
        "The supervisor ended while this call was under way. Its code was run to its end; the "
        "result is lost.",
        hint=_CHECK,
        data={"execution_id": execution_id},
    )


def _unknown(execution_id: str) -> FateUnknownError:
    return FateUnknownError(
        "The supervisor ended while this call was under way: whether its code ran, and how far, "
        "is unknown. Its session may have ended, with its variables and files.",
        hint=_CHECK,
        data={"execution_id": execution_id},
    )
