"""One call, from the first check to the last line of the ledger.

It runs in a task of its own, even if its caller goes away: nothing starts or ends without a line in
the ledger.
"""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import trio

from nsm.dataclass import dataclass, replace
from nsm.wire.errors import (
    AuditFailedError,
    BadRequestError,
    FateUnknownError,
    InternalError,
    NsmError,
)
from nsmd.bridge import arguments
from nsmd.bridge.call_handle import ProgramCall
from nsmd.bridge.commands import Command, open_command
from nsmd.bridge.ledger import Ledger, failed, not_started
from nsmd.bridge.ledger import ended as recorded
from nsmd.bridge.running import run
from nsmd.bridge.values import Caller, Program, ProgramEnd, RecordedCall
from nsmd.model.events import Events

log = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """Request of a client, unchecked.

    Attributes:
        name, given: name of the program, and arguments.
        again: the client repeats a call.
        refusal: why nothing will be started; None to check.
    """

    name: object
    given: object
    again: bool
    refusal: NsmError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Parts of the bridge that a call needs.

    Attributes:
        find: finds the program of that name for a caller; raises NsmError.
        admit: counts the call as running; raises NsmError if there is no room.
        variables: variables of the supervisor.
        output_bytes: bytes to keep of each stream of a program.
        events: get its start.
    """

    find: Callable[[Caller, object], Awaitable[Program]]
    admit: Callable[[ProgramCall], None]
    variables: Mapping[str, str]
    output_bytes: Callable[[], int]
    events: Events


@dataclass(frozen=True, slots=True)
class _Checked:
    """Program to start, and the open file that was checked for it."""

    program: Program
    command: Command
    texts: Sequence[str]
    variables: Mapping[str, str]


_FATES = {
    "ended": "The answer to this call is lost: the program was started, and has ended.",
    "under-way": "The supervisor ended while this call was under way: the program was started, and "
    "how far it came is unknown.",
}


async def carry_out(
    call: ProgramCall, wanted: CallRequest, ledger: Ledger, means: Means
) -> ProgramEnd:
    """Start the requested program, and wait for its end.

    Raises:
        NsmError: it was refused (and that was recorded), or could not be started. `InternalError`
            if nsm itself failed; that is recorded, too.
    """
    if wanted.again and not call.late:  # the supervisor that starts it will find that out
        await _never_started(call.asked, ledger)
    try:
        checked = await _check(call, wanted, means)
    except NsmError as error:
        call.admitted, call.refused = False, True
        try:
            await ledger.refuse(call.asked, error.message)
        except AuditFailedError:
            if not call.late:
                raise
            # Nothing was started, and clients learn that; the next supervisor records it.
        raise
    except Exception as error:  # boundary of a call: its fault must not harm others
        log.exception("%r failed before anything was started", call)
        call.admitted, call.refused = False, True
        await ledger.refuse(call.asked, f"nsm failed: {error!r}")
        raise fault() from error
    try:
        if call.stop.why is not None:
            call.refused = True
            gone = BadRequestError("The call was cancelled before the program was started.")
            await ledger.refuse(call.asked, gone.message)
            raise gone
        return await _run(call, checked, ledger, means)
    finally:
        checked.command.close()


async def _never_started(asked: RecordedCall, ledger: Ledger) -> None:
    """Make sure that an earlier supervisor did not start this call.

    Raises:
        FateUnknownError: it may have started it.
        AuditFailedError: nobody knows.
    """
    fate = await ledger.fate(asked.id, asked.caller.scope)
    if fate != "never":
        raise FateUnknownError(
            _FATES[fate],
            hint="`nsm bridge audit` shows what is known. Look at what it has done before you "
            "start it again.",
            data={"execution_id": asked.id},
        )


async def _check(call: ProgramCall, wanted: CallRequest, means: Means) -> _Checked:
    """Check the call, and find the program to start. The call then counts as running.

    Raises:
        NsmError: nothing will be started.
    """
    # Before all other checks, so that these characters cannot mislead one.
    if wanted.refusal is not None:
        raise wanted.refusal
    texts = arguments.check_characters(wanted.given)
    call.asked = replace(call.asked, arguments=texts)
    program = await means.find(call.asked.caller, wanted.name)
    arguments.check(program, texts)
    means.admit(call)
    variables = variables_of(program, means.variables)
    command = await trio.to_thread.run_sync(
        partial(
            open_command,
            program,
            call.asked.caller.writable,
            search_path=variables.get("PATH", ""),
        )
    )
    return _Checked(program, command, texts, variables)


async def _run(call: ProgramCall, checked: _Checked, ledger: Ledger, means: Means) -> ProgramEnd:
    asked, program = call.asked, checked.program
    await ledger.begin(asked)
    ended = ProgramEnd(exit_code=None, why_stopped="shutdown")  # if this task is cancelled
    try:
        call.started = True
        means.events.publish("program_started", subject=call, program=program.name)
        ended = await run(
            checked.command,
            program,
            checked.texts,
            variables=checked.variables,
            output_bytes=means.output_bytes(),
            on_line=call.take_line,
            stop=call.stop,
        )
    except NsmError as error:
        with trio.CancelScope(shield=True):
            await ledger.end(asked, not_started(error.message))
        raise
    except Exception as error:
        log.exception("%r failed; its program has been stopped", call)
        reason = f"nsm failed: {error!r}. The program was stopped, unless it had ended before."
        with trio.CancelScope(shield=True):
            await ledger.end(asked, failed(reason))
        raise fault() from error
    except BaseException:
        with trio.CancelScope(shield=True):
            await ledger.end(asked, recorded(ended))
        raise
    with trio.CancelScope(shield=True):
        await ledger.end(asked, recorded(ended))
    return replace(ended, timeout_s=program.timeout_s)


def fault() -> InternalError:
    """Make the error for a bug of nsm itself."""
    return InternalError(
        "nsm failed to carry out the call.",
        hint="`nsm bridge audit` says whether the program was started; the supervisor's log has "
        "the details.",
    )


def outcome_of(answer: ProgramEnd | NsmError) -> str:
    """One word for the outcome of a call: `ok`, `error`, `timeout`, `cancelled`, `shutdown`,
    `refused`, `unaudited`, `fault`.
    """
    if isinstance(answer, AuditFailedError):
        return "unaudited"
    if isinstance(answer, InternalError):
        return "fault"
    if isinstance(answer, NsmError):
        return "refused"
    if answer.why_stopped is not None:
        return answer.why_stopped
    return "ok" if answer.succeeded else "error"


def variables_of(program: Program, own: Mapping[str, str]) -> dict[str, str]:
    """All variables of a program: a fixed minimum, and those that its definition names.

    Args:
        own: the supervisor's environment.
    """
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
