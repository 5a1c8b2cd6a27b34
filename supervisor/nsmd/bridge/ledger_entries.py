"""Lines of the bridge's audit, in JSON; the call's id connects the lines of one call.

A line has the request as it came. Of a refused call only the beginning is kept: nothing happened,
and a client that only sends refused calls must not fill the disk.
"""

from __future__ import annotations

import json
from typing import Any, cast

from nsmd.audit.journal import rfc3339
from nsmd.bridge.values import ProgramEnd, RecordedCall

REFUSED_CHARS = 4096
"""Characters of all arguments of a refused call together."""

AGAIN_REFUSED_CHARS = 200
"""The same for a client that sends many: there is little room for so many."""

REFUSED_ARGUMENTS = 100

NAME_CHARS = 256
"""Characters of names that clients choose."""

REASON_CHARS = 1000

SUPERVISOR_ENDED = "supervisor-ended"
NOT_STARTED = "not-started"
FAULT = "fault"

# ASCII, so that half surrogates can be written, too
_ENCODER = json.JSONEncoder(separators=(",", ":"))

_WHOSE = ("client", "scope", "program", "supervisor")

Facts = dict[str, Any]


def start(asked: RecordedCall, *, at_s: float, supervisor: str) -> bytes:
    """Make the line that is on disk before the program starts.

    Args:
        at_s: Unix time.
        supervisor: name of the supervisor that has the call (`nsmd.bridge.recovery`).
    """
    facts = {
        **_asked(asked),
        "arguments": list(asked.arguments),
        "decision": "allowed",
        "supervisor": supervisor,
    }
    return _line("start", asked.id, facts, at_s)


def refused(asked: RecordedCall, reason: str, *, at_s: float, most: int = REFUSED_CHARS) -> bytes:
    """Make the only line of a refused call.

    Args:
        most: characters to keep of its arguments.
    """
    kept: list[str] = []
    room = most
    for argument in asked.arguments[:REFUSED_ARGUMENTS]:
        kept.append(argument[:room])
        room -= len(kept[-1])
        if room <= 0:
            break
    facts: Facts = {**_asked(asked), "arguments": kept}
    if kept != list(asked.arguments):
        facts["arguments_in_all"] = len(asked.arguments)
        facts["argument_chars_in_all"] = sum(map(len, asked.arguments))
    facts |= {"decision": "refused", "reason": reason[:REASON_CHARS]}
    return _line("refused", asked.id, facts, at_s)


def end(asked: RecordedCall, outcome: Facts, *, at_s: float, supervisor: str) -> bytes:
    """Make the line with the end of a call whose start was recorded.

    Args:
        outcome: from `ended`, `not_started` or `failed`.
    """
    facts = {**_whose(asked), "supervisor": supervisor, **outcome}
    return _line("end", asked.id, facts, at_s)


def ended(outcome: ProgramEnd) -> Facts:
    """Describe the outcome of a started program."""
    facts: Facts = {
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "why_stopped": outcome.why_stopped,
        "duration_s": round(outcome.duration_s, 6),
    }
    return facts | ({"left": outcome.left} if outcome.left else {})


def not_started(reason: str) -> Facts:
    """Describe a call that could not be started after all."""
    return {"why_stopped": NOT_STARTED, "reason": reason[:REASON_CHARS]}


def failed(reason: str, why_stopped: str = FAULT) -> Facts:
    """Describe a call in which nsm itself failed."""
    facts: Facts = {"exit_code": None, "signal": None, "why_stopped": why_stopped}
    return facts | {"reason": reason[:REASON_CHARS]}


def settled(begun: Facts, *, at_s: float) -> bytes:
    """Make the end of a call whose supervisor was killed.

    Args:
        begun: its start, from `parsed`.
    """
    facts: Facts = {key: begun[key] for key in _WHOSE if key in begun}
    reason = (
        "nsm's supervisor was killed meanwhile. The program was stopped, unless it had ended "
        "before."
    )
    return _line("end", str(begun["id"]), facts | failed(reason, SUPERVISOR_ENDED), at_s)


def unwritten(asked: RecordedCall, calls: int, *, at_s: float) -> bytes:
    """Make the one line for calls that were refused because they came too fast.

    Args:
        asked: one call of the same client.
    """
    facts = _whose(asked) | {
        "program": None,
        "decision": "refused",
        "reason": "more calls of this client, which came faster than they are written down",
        "calls": calls,
    }
    return _line("refused", "", facts, at_s)


def parsed(line: bytes) -> Facts | None:
    """Parse a line; None if it is torn, or written by another program."""
    try:
        facts: object = json.loads(line)
    except ValueError:
        return None
    if not isinstance(facts, dict):
        return None
    found = cast("Facts", facts)
    return found if all(isinstance(found.get(key), str) for key in ("at", "event", "id")) else None


def key(facts: Facts) -> tuple[str, str]:
    """Scope and id of a call: clients choose ids, and may choose the same."""
    return str(facts.get("scope")), str(facts["id"])


def mark(call_id: str) -> bytes:
    """Return the bytes that mark the lines of one call. Quotes within values are escaped, and only
    a name is followed by a colon.
    """
    return f',"id":{_ENCODER.encode(call_id)},'.encode()


def supervisor_mark(supervisor: str) -> bytes:
    """Return the bytes that mark one supervisor's starts and ends."""
    return f',"supervisor":{_ENCODER.encode(supervisor)}'.encode()


def _asked(asked: RecordedCall) -> Facts:
    facts = _whose(asked)
    facts["way"] = asked.caller.way
    if asked.caller.peer is not None:
        facts["pid"], facts["uid"] = asked.caller.peer
    return facts


def _whose(asked: RecordedCall) -> Facts:
    return {
        "client": asked.caller.client[:NAME_CHARS],
        "scope": asked.caller.scope[:NAME_CHARS],
        "program": asked.program[:NAME_CHARS],
    }


def _line(event: str, call_id: str, facts: Facts, at_s: float) -> bytes:
    text = _ENCODER.encode({"at": rfc3339(at_s), "event": event, "id": call_id, **facts})
    return text.encode() + b"\n"
