"""Lines of JSON-RPC as the SDK's messages, and back; limits of their structure.

16 MB of `{},` are five million objects, and seconds in which nobody else is served. The cost of
JSON depends not on its bytes but on its values, and the standard has no limit for these. A string
is one value, and code is full of commas, brackets and quotes. So strings are removed before
counting, unless a count of the whole message shows already that it cannot be too much. That takes a
microsecond for a small message, and for the largest one no longer than parsing it.

In invalid JSON, the part before the first mistake is counted correctly, and no parser gets further.
"""

from __future__ import annotations

import json
from typing import Any, cast

from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from nsm import jsonlines
from nsm.dataclass import dataclass
from nsm.wire.errors import (
    BadRequestError,
    CodeTooLargeError,
    NsmError,
    OverloadedError,
    ResultTooLargeError,
)
from nsmd.mcp.render import ToolReply, render_error, unlike_json
from nsmd.model.values import MAX_CODE_BYTES

MAX_VALUES = 32_768
"""Largest number of arrays and objects with all their members, counted by commas and brackets. A
call has ten, and one for each argument of a program; `nsmd.bridge` checks half as many arguments.
This number takes 10 ms.
"""

MAX_DEPTH = 64
"""Deepest nesting of a message. Ours need 6; later code recurses, this check does not."""

MAX_BARE_BYTES = 1024 * 1024
"""Bytes outside of strings: room for spaces and numbers. Whole numbers of 4,300 digits, the most
that Python reads, take 0.1 ms each.
"""

FEW_VALUES = 256
"""Largest number of values for which all of them may be such numbers."""

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))


def why_too_complex(message: bytes) -> str:
    """Describe how a message exceeds a limit, as a sentence without its subject; empty if it does
    not.
    """
    if b"\0" in message[:2] or message[:2] in _UTF_16:
        return "is not UTF-8"  # there is JSON in which other bytes are quotes
    opened = _opened(message)
    most = MAX_VALUES if len(message) <= MAX_BARE_BYTES else FEW_VALUES
    if opened <= MAX_DEPTH and opened + message.count(b",") <= most:
        return ""
    bare = _unquoted(message)
    if bare is None or _opened(bare) + bare.count(b",") > MAX_VALUES:
        return f"holds more than {MAX_VALUES:,} values"
    if len(bare) > MAX_BARE_BYTES:
        return f"has more than {MAX_BARE_BYTES:,} bytes outside of strings"
    if _opened(bare) > MAX_DEPTH and _depth(bare) > MAX_DEPTH:
        return f"is nested more than {MAX_DEPTH} deep"
    return ""


def _unquoted(message: bytes) -> bytes | None:
    """Return the text outside of strings; None if there are more strings than values."""
    if b"\\" in message:
        # From the left, so that the last backslash of a row is left if it escapes the next
        # character.
        message = message.replace(b"\\\\", b"").replace(b'\\"', b"")
    most = 4 * MAX_VALUES + 1  # a member has four quotes
    pieces = message.split(b'"', most)
    return None if len(pieces) > most else b"".join(pieces[::2])


def _opened(bare: bytes) -> int:
    return bare.count(b"[") + bare.count(b"{")


def _depth(bare: bytes) -> int:
    deepest = depth = 0
    for bracket in bare.translate(None, _NO_BRACKETS):
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


MAX_BATCH = 1000
"""Messages in one line. A line has room for 400,000, which would take seconds of the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """Answer in place of serving a message."""

    id: RequestId | None
    code: int
    message: str


def decode(line: bytes) -> list[JSONRPCMessage | ErrorAnswer]:
    """Decode the messages of a line: one, or those of a batch; each is valid or refused.

    Malformed notifications and responses are dropped: nobody waits for an answer to them.
    """
    try:
        parsed = jsonlines.parse(line)
    except ValueError as error:
        known = jsonlines.unread_id(line)
        return [ErrorAnswer(id=known, code=PARSE_ERROR, message=f"Parse error: {error}")]
    items = cast("list[object]", parsed) if isinstance(parsed, list) else [parsed]
    if not items:
        return [_invalid("an empty batch")]
    if len(items) > MAX_BATCH:
        return [_invalid(f"a batch of {len(items)} messages; at most {MAX_BATCH} are taken")]
    return [message for item in items for message in _message(item)]


def encode(message: JSONRPCMessage) -> bytes:
    """Encode a message as a line. An answer that is too long is replaced by an error
    that says so.
    """
    line = _line(message)
    if len(line) <= jsonlines.MAX_LINE_BYTES or not isinstance(message, JSONRPCResponse):
        return line
    # The shim would drop it, and the client would wait for ever.
    error = ResultTooLargeError(
        f"The answer has {len(line):,} bytes; the limit is {jsonlines.MAX_LINE_BYTES:,}.",
        hint="The code was run. Print less, or write to a file in a session and read parts of it. "
        "`[mcp] max_result_chars` in nsm's configuration bounds the text of an answer.",
    )
    return _line(message.model_copy(update={"result": _error_result(error)}))


def _line(message: JSONRPCMessage) -> bytes:
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except PydanticSerializationError:
        # Half a surrogate pair that the client sent and an error of the SDK repeats: it can be sent
        # only escaped.
        return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode() + b"\n"


def error_message(refusal: ErrorAnswer) -> JSONRPCError:
    """Make the message of a refusal."""
    return JSONRPCError(
        jsonrpc="2.0",
        id=refusal.id,
        error=ErrorData(code=refusal.code, message=refusal.message),
    )


def too_long(line: jsonlines.TooLong) -> JSONRPCMessage:
    """Make the answer to a line over the limit, for its sender as far as known."""
    fields = jsonlines.outline(line)
    error = CodeTooLargeError(
        f"The message has {line.size:,} bytes; the limit is {jsonlines.MAX_LINE_BYTES:,}, and "
        f"{MAX_CODE_BYTES:,} for code.",
        hint="The code was not run. Write large data to a file in a session in several calls, or "
        "read it from the project directory.",
    )
    return _refused(jsonlines.request_id(fields), fields.get("method"), error)


def misshapen(line: bytes, why: str) -> JSONRPCMessage:
    """Make the answer to a line with too much structure, for its sender as far as known."""
    fields = jsonlines.outline(jsonlines.ends_of(line))
    return _refused(jsonlines.request_id(fields), fields.get("method"), _misshapen(why))


def misshapen_error(body: bytes, why: str) -> JSONRPCError:
    """Make the same as an error for any request: HTTP has a status for it."""
    known = jsonlines.request_id(jsonlines.outline(jsonlines.ends_of(body)))
    return error_message(ErrorAnswer(id=known, code=INVALID_REQUEST, message=str(_misshapen(why))))


def _misshapen(why: str) -> BadRequestError:
    return BadRequestError(
        f"The message {why}, and was not read further.",
        hint="Nothing was run. Write data as text, in one string, or to a file in a session in "
        "several calls.",
    )


def too_many(request: JSONRPCRequest, limit: int) -> JSONRPCMessage:
    """Make the answer to a request while too many others of the client are under way."""
    error = OverloadedError(
        f"{limit} requests of this client are under way, which is the limit.",
        hint="The code was not run. Wait for some of them, then try again.",
    )
    return _refused(request.id, request.method, error)


def result_map(reply: ToolReply) -> dict[str, Any]:
    """Make the result of `tools/call` from a reply, with the members that all revisions have."""
    images = [
        {"type": "image", "data": image.base64, "mimeType": image.kind} for image in reply.images
    ]
    return {
        "content": [{"type": "text", "text": unlike_json(reply.text)}, *images],
        "isError": reply.is_error,
        "_meta": dict(reply.meta),
    }


def _refused(known: RequestId | None, method: object, error: NsmError) -> JSONRPCMessage:
    """Make a refusal: for a tool call a result, which the model reads; for other
    requests an error.
    """
    if known is not None and method == "tools/call":
        return JSONRPCResponse(jsonrpc="2.0", id=known, result=_error_result(error))
    return error_message(ErrorAnswer(id=known, code=INVALID_REQUEST, message=str(error)))


def _error_result(error: NsmError) -> dict[str, Any]:
    # The latest revision demands `resultType`; the others ignore it.
    return {**result_map(render_error(error)), "resultType": "complete"}


def _message(item: object) -> list[JSONRPCMessage | ErrorAnswer]:
    if not isinstance(item, dict):
        return [_invalid("a message must be an object")]
    fields = cast("dict[str, Any]", item)
    if "method" in fields and "id" in fields:
        return [_request(fields)]
    try:
        if "method" in fields:
            return [JSONRPCNotification.model_validate(fields)]
        if "result" in fields:
            return [JSONRPCResponse.model_validate(fields)]
        if "error" in fields:
            return [JSONRPCError.model_validate(fields)]
    except ValidationError:
        return []
    return [_invalid("neither a method nor a result", jsonlines.request_id(fields))]


def _request(fields: dict[str, Any]) -> JSONRPCRequest | ErrorAnswer:
    known = jsonlines.request_id(fields)
    if known is None:
        return _invalid("id must be a string or a whole number")
    if not isinstance(fields.get("params", {}), dict | None):
        return ErrorAnswer(id=known, code=INVALID_PARAMS, message="params must be an object")
    try:
        return JSONRPCRequest.model_validate(fields)
    except ValidationError as error:
        wrong = ", ".join(sorted({str(e["loc"][0]) for e in error.errors() if e["loc"]}))
        return _invalid(f"{wrong or 'message'} is not as JSON-RPC 2.0 has it", known)


def _invalid(why: str, known: RequestId | None = None) -> ErrorAnswer:
    return ErrorAnswer(id=known, code=INVALID_REQUEST, message=f"Invalid request: {why}")
