"""The code interpreter: contexts, each a job that keeps the state of its code, and executions.

A context prints what its code prints, and between that lines of events: U+001E, the token of the
request, ``.`` or ``+`` (more follows), and a piece of JSON in ASCII. Code in the sandbox may write
such lines itself: then it tells its own client what it likes. So everything is checked, and nothing
else depends on it.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
import secrets
import shlex
import time
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

import trio

from nsm.integrations.e2b.errors import RefusalError, refusal_of
from nsm.integrations.e2b.in_session.python_context import TYPES
from nsm.integrations.e2b.requests import text, texts
from nsm.integrations.sandboxes import without_displays
from nsm.wire.errors import JobError, NsmError, UnknownJobError
from nsm.wire.jobs import chunks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsm import AsyncJob, RunResult
    from nsm.integrations.e2b.requests import HttpRequest
    from nsm.integrations.e2b.sandboxes import E2bSandbox

LANGUAGES = {
    "python": "python",
    "python3": "python",
    "javascript": "javascript",
    "js": "javascript",
    "bash": "bash",
    "sh": "bash",
}
"""Names of languages, and what they mean here."""

FRESH = "python-fresh"
"""Language of code that runs in a fresh interpreter: it keeps no state, so it has no contexts."""

MAX_CONTEXTS = 32
"""Contexts of one sandbox."""

INTERRUPT_S = 3.0
"""Time for code to end after it was interrupted. Then its interpreter is ended."""

WAIT_S = 20.0
"""Longest wait for output before it is asked for again."""

ENDED = "the interpreter of this context has ended, and its state is lost"

_PROGRAMS = {
    "python": ("python3", "-c", "python_context.py"),
    "javascript": ("node", "-e", "node_context.js"),
    "bash": ("bash", "-c", "bash_context.sh"),
}

MAX_EVENT_CHARS = 32 * 1024 * 1024
"""Largest event; a larger one is left out."""

TEXTS = ("text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "javascript")
"""Formats of a result that are texts."""

OBJECTS = ("json", "data", "extra")
"""Formats of a result that are objects."""

_TRACEBACK, _SYNTAX = "Traceback (most recent call last):", '  File "<exec '
"""Beginnings of what Python writes about an exception; it has no traceback of a `SyntaxError`."""

_EXCEPTION = re.compile(r"^(?:[\w.<>]+\.)?(\w+)(?:: (.*))?\Z", re.MULTILINE | re.DOTALL)

_MARK = "\x1e"


class CodeContext:
    """One context.

    Attributes:
        id, language, cwd: as clients know them.
        turn: held by the execution that runs; others wait.
    """

    def __init__(self, context_id: str, language: str, cwd: str, job: AsyncJob) -> None:
        self.id = context_id
        self.language = language
        self.cwd = cwd
        self.job = job
        self.turn = trio.Lock()

    def __repr__(self) -> str:
        return f"<CodeContext {self.id} {self.language}>"

    def row(self) -> dict[str, str]:
        """The context as clients see it."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    def request(self, token: str, code: str, variables: dict[str, str]) -> bytes:
        """The line that runs code."""
        if self.language != "bash":
            asked = {"token": token, "code": code, "env_vars": variables}
            return json.dumps(asked).encode() + b"\n"
        settings = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in variables.items())
        return " ".join([token, _base64(code), _base64(settings)]).encode() + b"\n"


async def answer(sandbox: E2bSandbox, request: HttpRequest) -> None:
    """Answer a request."""
    match request.method, request.path.strip("/").split("/"):
        case "POST", ["execute"]:
            await _execute(sandbox, request)
        case "GET", ["contexts"]:
            await _forget_ended(sandbox)
            await request.answer(200, [each.row() for each in sandbox.contexts.values()])
        case "POST", ["contexts"]:
            asked = request.json()
            language, cwd = _language(text(asked, "language", "python")), text(asked, "cwd", "")
            async with sandbox.opening:
                context = await _open(sandbox, secrets.token_hex(8), language, cwd)
            await request.answer(201, context.row())
        case "DELETE", ["contexts", context_id]:
            await _close(sandbox, _known(sandbox, context_id))
            await request.answer(204)
        case "POST", ["contexts", context_id, "restart"]:
            old = _known(sandbox, context_id)
            async with sandbox.opening:
                await _close(sandbox, old)
                await _open(sandbox, old.id, old.language, old.cwd)
            await request.answer(200, {})
        case "GET", ["health"]:
            await request.answer(200, "OK")
        case _:
            raise RefusalError("not_found", f"there is no {request.method} {request.path}")


async def _open(sandbox: E2bSandbox, context_id: str, language: str, cwd: str) -> CodeContext:
    """Start a context. The caller has `sandbox.opening`, so that nobody passes the limit."""
    if len(sandbox.contexts) >= MAX_CONTEXTS:
        await _forget_ended(sandbox)
    if len(sandbox.contexts) >= MAX_CONTEXTS:
        raise RefusalError("resource_exhausted", f"a sandbox has at most {MAX_CONTEXTS} contexts")
    cwd = sandbox.path(cwd)
    program, option, file = _PROGRAMS[language]
    code = (resources.files("nsm.integrations.e2b.in_session") / file).read_text()
    argv = [program, option, code, str(sandbox.sandboxes.settings.max_timeout_s)]
    if language == "bash":
        argv.insert(3, "bash")
    job = await sandbox.start(argv, cwd=cwd, stdin=True)
    context = CodeContext(context_id, language, cwd, job)
    sandbox.contexts[context_id] = context
    return context


async def _forget_ended(sandbox: E2bSandbox) -> None:
    """Forget contexts whose interpreters have ended since they last ran something."""
    known = list(sandbox.contexts.values())  # before the list: others begin meanwhile
    running = {info.id for info in await sandbox.client.jobs(sandbox.id) if info.running}
    for context in known:
        if context.job.id not in running:
            _forget(sandbox, context)


async def _close(sandbox: E2bSandbox, context: CodeContext) -> None:
    _forget(sandbox, context)
    with suppress(NsmError):  # it may have ended
        await context.job.stop(grace_s=0.5)


async def _execute(sandbox: E2bSandbox, request: HttpRequest) -> None:
    asked = request.json()
    code, variables = text(asked, "code"), texts(asked, "env_vars")
    for name in variables:
        if not name.isidentifier():
            raise RefusalError("invalid_argument", f"{name!r:.80} is not a name for a variable")
    context_id = asked.get("context_id")
    if context_id is not None:
        context = _known(sandbox, text(asked, "context_id"))
    elif text(asked, "language", "python").lower() == FRESH:
        env = sandbox.sandboxes.envs.get(sandbox.env)
        if variables or env is None or env.interpreter != "python":
            why = "takes no envs, and needs a sandbox whose environment is Python's"
            instead = "Give envs when you create the sandbox, or run the code as python"
            raise RefusalError("unimplemented", f"{FRESH} {why}. {instead}.")
        await request.while_there(_run_fresh, sandbox, request, code)
        return
    else:
        context = await _default(sandbox, _language(text(asked, "language", "python")))
    await request.while_there(_run, sandbox, context, request, code, variables)


async def _default(sandbox: E2bSandbox, language: str) -> CodeContext:
    """The context of a language that is there without being asked for."""
    async with sandbox.opening:
        context = sandbox.contexts.get(f"default-{language}")
        if context is None or not context.job.info.running:
            sandbox.contexts.pop(f"default-{language}", None)
            context = await _open(sandbox, f"default-{language}", language, "")
        return context


async def _run(
    sandbox: E2bSandbox,
    context: CodeContext,
    request: HttpRequest,
    code: str,
    variables: dict[str, str],
) -> None:
    async with context.turn:
        token = secrets.token_hex(8)
        with suppress(JobError):  # its interpreter has ended, which reading tells
            await context.job.write(context.request(token, code, variables))
        await request.begin(200, {"content-type": "application/x-ndjson"})
        reader = _Reader(context, token)
        try:
            while not reader.done:
                for line in await reader.read():
                    await request.write(json.dumps(line).encode() + b"\n")
        except UnknownJobError:
            _forget(sandbox, context)
            await request.write(_error("ContextEnded", ENDED))
        except NsmError as error:
            refusal = refusal_of(error, sandbox.id)
            await request.write(_error("SandboxError", refusal.message))
        finally:
            if not reader.done:
                await _interrupt(sandbox, context, reader)
        if not context.job.info.running:
            _forget(sandbox, context)
        await request.end()


async def _run_fresh(sandbox: E2bSandbox, request: HttpRequest, code: str) -> None:
    """Run code in a fresh interpreter, beside all contexts; tell its results when it has ended."""
    await request.begin(200, {"content-type": "application/x-ndjson"})
    try:
        result = await sandbox.run_fresh(code)
    except NsmError as error:
        await request.write(_error("SandboxError", refusal_of(error, sandbox.id).message))
    else:
        for line in fresh_lines(result):
            await request.write(json.dumps(line).encode() + b"\n")
    await request.end()


def fresh_lines(result: RunResult) -> Iterator[dict[str, Any]]:
    """Lines for a client of what came of code in a fresh interpreter."""
    stderr, error = result.stderr, None
    if result.timed_out:
        error = ("TimeoutError", f"the limit of {result.timeout_s:g} s was over", "")
    elif result.exit_code:
        error = ("SystemExit", str(result.exit_code), "")
        # A chain of exceptions begins with the first one, and ends with the one that is told.
        before, header, _ = stderr.partition(_TRACEBACK)
        if not header:
            before, header, _ = stderr.partition(_SYNTAX)
        told = stderr[len(before) :]
        last = told.rstrip("\n").rpartition(header)[2].partition("\n")[2] if header else ""
        if (found := _EXCEPTION.search(last)) is not None:
            error = (found[1], found[2] or "", told)
            stderr = before
    for stream, part in (("stdout", without_displays(result)), ("stderr", stderr)):
        if part:
            yield _output(stream, part)
    for number, shown in enumerate(result.displays, 1):
        formats = {TYPES[kind]: value for kind, value in shown.items() if kind in TYPES}
        is_main = number == len(result.displays)
        yield checked({"type": "result", **formats, "is_main_result": is_main}) or {}
    if error is not None:
        yield {"type": "error", **dict(zip(("name", "value", "traceback"), error, strict=True))}


async def _interrupt(sandbox: E2bSandbox, context: CodeContext, reader: _Reader) -> None:
    """Interrupt code whose client has gone; restart the context if that does not help."""
    with trio.CancelScope(shield=True), suppress(NsmError):
        with trio.move_on_after(INTERRUPT_S):
            await context.job.interrupt()
            while not reader.done:
                await reader.read()
            return
        await _close(sandbox, context)


class _Reader:
    """Reads what one execution writes, up to its end on both streams."""

    def __init__(self, context: CodeContext, token: str) -> None:
        self._job = context.job
        self._splitters = {"stdout": Splitter(token), "stderr": Splitter(token)}
        self._ended: set[str] = set()
        self.done = False

    async def read(self) -> list[dict[str, Any]]:
        """Wait for something; returns lines for the client."""
        output = await self._job.read(wait_s=WAIT_S)
        lines: list[dict[str, Any]] = []
        for chunk in chunks_of(output):
            if chunk.missing:
                note = f"[{chunk.missing} bytes of output are lost]\n"
                lines.append(_output("stderr", note))
            for part in self._splitters[chunk.stream].split(chunk.data):
                if isinstance(part, str):
                    lines.append(_output(chunk.stream, part))
                elif part.get("type") == "end" or not part:
                    self._ended.add(chunk.stream)
                elif (line := checked(part)) is not None:
                    lines.append(line)
        if len(self._ended) == 2:
            self.done = True
        elif output.is_last:
            self.done = True
            why = f"{ENDED} (exit code {output.job.exit_code})"
            lines.append(json.loads(_error("ContextEnded", why)))
        return lines


def _forget(sandbox: E2bSandbox, context: CodeContext) -> None:
    if sandbox.contexts.get(context.id) is context:  # and not one that was made in its place
        del sandbox.contexts[context.id]


def _output(stream: str, part: str) -> dict[str, Any]:
    return {"type": stream, "text": part, "timestamp": time.time_ns()}


def _error(name: str, value: str) -> bytes:
    told = {"type": "error", "name": name, "value": value, "traceback": value}
    return json.dumps(told).encode() + b"\n"


def _known(sandbox: E2bSandbox, context_id: str) -> CodeContext:
    context = sandbox.contexts.get(context_id)
    if context is None:
        raise RefusalError("not_found", f"there is no context {context_id!r:.80}")
    return context


def _language(name: str) -> str:
    found = LANGUAGES.get(name.lower())
    if found is None:
        raise RefusalError(
            "unimplemented",
            f"nsm has no contexts of {name!r:.40}, only of python, javascript and bash",
        )
    return found


def _base64(value: str) -> str:
    return base64.b64encode(value.encode("utf-8", "surrogateescape")).decode() or "Cg=="


class Splitter:
    """Splits one stream of a context into texts and events."""

    def __init__(self, token: str) -> None:
        self._start = _MARK + token
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._event: list[str] = []
        self._event_chars = 0

    def split(self, data: bytes) -> Iterator[str | dict[str, Any]]:
        """Take what the stream has next; yields texts and events in order."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        while text:
            plain, mark, rest = text.partition(_MARK)
            if plain:
                yield plain
            if not mark:
                return
            text = mark + rest
            if not text.startswith(self._start):
                if self._start.startswith(text):  # it may be the beginning of one
                    self._rest = text
                    return
                yield mark
                text = rest
                continue
            line, newline, following = text.partition("\n")
            if not newline:
                if len(line) > len(self._start) + 8192:  # nothing of ours is that long
                    yield line
                    return
                self._rest = text
                return
            text = following
            yield from self._take(line[len(self._start) :])

    def _take(self, piece: str) -> Iterator[dict[str, Any]]:
        self._event_chars += len(piece)
        if self._event_chars <= MAX_EVENT_CHARS:
            self._event.append(piece[1:])
        if piece[:1] == "+":
            return
        whole, chars = "".join(self._event), self._event_chars
        self._event, self._event_chars = [], 0
        if chars > MAX_EVENT_CHARS:
            return
        try:
            value = json.loads(whole)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            yield cast("dict[str, Any]", value)


def checked(event: dict[str, Any]) -> dict[str, Any] | None:
    """The part of an event that clients understand; None if there is none."""
    match event.get("type"):
        case "result":
            told = {name: event[name] for name in TEXTS if isinstance(event.get(name), str)}
            told |= {name: event[name] for name in OBJECTS if isinstance(event.get(name), dict)}
            return {"type": "result", **told, "is_main_result": event.get("is_main_result") is True}
        case "error":
            return {
                "type": "error",
                **{name: str(event.get(name, "")) for name in ("name", "value", "traceback")},
            }
        case "number_of_executions" if type(event.get("execution_count")) is int:
            return {
                "type": "number_of_executions",
                "execution_count": event["execution_count"],
            }
        case _:
            return None
