"""Code that clients send again, since they lost the connection over which they had sent it before.

It must be run once in all: what is under way or remembered here is the answer; what an earlier
supervisor was given is run if it is known not to have been, and else the client is told what is
known of it.
"""

from __future__ import annotations

from nsm.wire.errors import BadRequestError, FateUnknownError, ResultLostError
from nsmd.fdstore.fates import Fates
from nsmd.model import names
from nsmd.model.values import RunRequest
from nsmd.sessions.ended import Executions
from nsmd.sessions.execution import Execution

_CHECK = "Check what it has done (its variables, its files) before you run it again."


class Deduplication:
    """Executions by the ids that clients gave them.

    Args:
        executions: those that this supervisor was given, or has taken up.
        fates: what is known of those of earlier ones.
    """

    def __init__(self, executions: Executions, fates: Fates) -> None:
        self._executions = executions
        self._fates = fates

    def find(
        self, request: RunRequest, name: str | None, scope: str | None = None
    ) -> Execution | None:
        """The execution that is meant; None if the code has never been run, and is to be run now.

        Args:
            request: that says `again`.
            name: of the session that it is for; None for no session of its own.
            scope: of that session; None for the client's own.

        Raises:
            BadRequestError: it has no id to be found by.
            ResultLostError: it was run.
            FateUnknownError: it may have been.
        """
        wanted, client = _id_of(request), request.client
        scope = client.scope if scope is None else scope
        for execution in (self._executions.get(wanted), *self._executions.told_of(wanted)):
            if execution is None or not _is_of(execution, request):
                continue
            if _is_in(execution, request.session, scope):
                return execution
        fate = self._fates.of(wanted, scope, name)
        if fate == "done":
            raise _lost(wanted)
        if fate == "unknown":
            raise _unknown(wanted)
        return None

    def find_of_gone(self, request: RunRequest) -> Execution:
        """The same where the session that it was for is not there: then nothing can be run.

        Raises:
            BadRequestError, ResultLostError, FateUnknownError: as `find`.
        """
        execution = self._under_way(request)
        if execution is not None:
            return execution
        wanted = _id_of(request)
        raise _lost(wanted) if wanted in self._fates.done else _unknown(wanted)

    def make_way(self, execution_id: str, name: str | None, scope: str) -> None:
        """Free an id that a client gives to new code.

        An agent that was taken up may claim ids that it was never given, those to come included:
        that is not to keep code out of other sessions.

        Args:
            name, scope: of the session that the code is for.
        """
        claimed = self._executions.get(execution_id)
        if claimed is not None and claimed.earlier and not _is_in(claimed, name, scope):
            self._executions.rename(claimed, f"{claimed.session.id}.{execution_id}")

    def _under_way(self, request: RunRequest) -> Execution | None:
        execution = self._executions.get(_id_of(request))
        if execution is None or not _is_of(execution, request):
            return None
        return execution


def _is_of(execution: Execution, request: RunRequest) -> bool:
    """Tell whether the same client sent both."""
    first, again = execution.request.client, request.client
    return names.owner_of(first.scope) == names.owner_of(again.scope)


def _is_in(execution: Execution, name: str | None, scope: str) -> bool:
    """Return whether it is in the session that is meant. A reattached agent reports its executions
    itself and must not answer for another session's."""
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
