"""The meaning of a request to run code: its code, its environment, and whether it ran already.

Code that a client sends again after it lost a connection must run only once. If the execution is
under way or remembered, it is the answer. If an earlier supervisor got the code, it runs now only
if it is known that it never ran; else the client learns what is known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from nsm.wire import code as wire_code
from nsm.wire.errors import BadRequestError, FateUnknownError, NsmError, ResultLostError
from nsmd.environments.catalog import OTHER_NAMES
from nsmd.model import names
from nsmd.model.values import Environment, Interpreter, RunRequest
from nsmd.restart.reattach import EarlierExecutions
from nsmd.sessions.execution import Execution, ExecutionIndex
from nsmd.sessions.session import Session


def check_runs_code(environment: Environment) -> None:
    """Check that an environment has an interpreter."""
    if environment.only_programs:
        raise BadRequestError(
            f"{environment.name!r} has no interpreter, so it runs no code.",
            hint=f"Start programs in it: `nsm exec -e {environment.name} NAME -- PROGRAM`.",
        )


def env_left_open(
    request: RunRequest,
    live: Session | None,
    environments: Sequence[Environment],
    default: str | None,
) -> str:
    """Choose the environment of a call that names none."""
    if live is not None:
        own = live.spec.environment
        if request.language not in ("", own.interpreter):
            raise BadRequestError(
                f"The session {request.session!r} runs {own.name}, and the code is for "
                f"{request.language}; it was not run.",
                hint="Use another session name, or name the environment.",
            )
        return own.name
    usable = {e.name: e for e in environments if e.problem is None}
    if default is not None and request.language:
        chosen = usable.get(OTHER_NAMES.get(default, default))
        if chosen is not None and chosen.interpreter != request.language:
            default = None  # the default cannot run it
    if named := default or request.language:
        return named
    message = "Nothing says which environment to run the code in."
    if request.session:
        message = f"There is no session {request.session!r} here, and n{message[1:]}"
    raise BadRequestError(
        message,
        hint="Name one with -e, with `env` in a call, or with `env` in [defaults] of "
        "config.toml. Available: "
        f"{', '.join(usable) or 'none'}.",
    )


_FENCE = re.compile(r"\s*(`{3,})[ \t]*([\w+#.-]*)[^`\n]*\n(.*?\n)?[ \t]*\1[ \t]*\s*", re.DOTALL)

_MAX_TAG_CHARS = 20


def without_fence(code: str, interpreter: Interpreter) -> tuple[str, str]:
    """Remove a fence around all of the code. Returns the code, and a note if there was a fence.

    In no language here does valid code begin and end like that. A byte order mark at the beginning
    goes, too, and for Bash the carriage returns if every line ends with one: Python and Node read
    such line ends as others.
    """
    code = code.removeprefix("\ufeff")
    if interpreter == "bash" and "\r" in code:
        *lines, last = code.split("\n")
        if all(line.endswith("\r") for line in lines):
            code = "\n".join(line.removesuffix("\r") for line in (*lines, last))
    if "```" not in code[:100].lstrip()[:3]:
        return code, ""
    found = _FENCE.fullmatch(code)
    if found is None:
        return code, ""
    fence, tag, inner = found[1], found[2].lower(), found[3] or ""
    if any(line.strip().startswith(fence) for line in inner.splitlines()):
        return code, ""  # there are several, with text between them
    note = "the Markdown fence around the code was removed"
    if tag and wire_code.SPOKEN.get(tag, tag) != interpreter:
        note += f"; it says {tag[:_MAX_TAG_CHARS]}, and {interpreter} ran the code"
    return inner, note


_CHECK = "Check what it has done (its variables, its files) before you run it again."


class Deduplication:
    """Executions by the ids that clients gave them.

    Attributes:
        instance: name of this supervisor, from its start to its end or reload.
    """

    def __init__(self, executions: ExecutionIndex, earlier: EarlierExecutions) -> None:
        self.instance = os.urandom(8).hex()
        self._executions = executions
        self._earlier = earlier

    def find(
        self, request: RunRequest, name: str | None, scope: str | None = None
    ) -> Execution | None:
        """Find the execution that a request means; None if the code never ran and should run now.

        Args:
            name: name of its session; None for a one-shot.
            scope: scope of that session; None for the client's own.

        Raises:
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
        state = self._earlier.state_of(wanted, scope, name)
        if state == "done":
            raise _lost(wanted)
        if state == "unknown":
            raise _unknown(wanted)
        return None

    def find_of_gone(self, request: RunRequest) -> Execution:
        """Find the execution if its session is gone: then nothing can run now."""
        wanted = _id_of(request)
        execution = self._executions.get(wanted)
        if execution is not None and _is_of(execution, request):
            return execution
        raise _lost(wanted) if wanted in self._earlier.done else _unknown(wanted)

    def job_of_gone(self, request: RunRequest) -> NsmError:
        """Make the error for a program that was to be started in a session that is gone: that may
        have happened.
        """
        return _unknown(_id_of(request))

    def new_id(self, wanted: str | None, name: str | None, scope: str) -> str:
        """Check the id that a client gives to new code, or make one."""
        if wanted is None:
            return os.urandom(8).hex()
        if not 1 <= len(wanted) <= 128 or not wanted.isprintable():
            raise BadRequestError("execution_id must be 1 to 128 printable characters.")
        claimed = self._executions.get(wanted)
        if claimed is not None and claimed.earlier and not _is_in(claimed, name, scope):
            # An agent that was taken over may claim ids that it never got, future ones included.
            # That must not keep code out of other sessions.
            self._executions.rename(claimed, f"{claimed.session.id}.{wanted}")
            claimed = None
        if claimed is not None:
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
