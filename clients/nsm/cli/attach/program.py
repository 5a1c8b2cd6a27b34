"""The composition root of `nsm attach`: connects, runs, ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import sys
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from prompt_toolkit.history import History

from nsm import paths
from nsm.cli import terminal
from nsm.cli.attach.feed import Feed, OwnExecution, label, others
from nsm.cli.attach.prompt import Prompt, in_background
from nsm.cli.attach.screen import ENDING_SIGNALS, AttachScreen, end_by, handled, quiet, typing_ahead
from nsm.cli.connection import TargetSession, tell_found
from nsm.cli.options import EXIT_FAILED, EXIT_OK
from nsm.cli.render import formats
from nsm.cli.render.results import Folder
from nsm.cli.streams.resumed_transcript import Continued
from nsm.client.asynchronous import AsyncClient
from nsm.client.places import checked_code
from nsm.client.retry import CutOffError
from nsm.hosts.place import client_socket
from nsm.startup import start
from nsm.wire import transcripts
from nsm.wire.code import RunOptions, RunResult, logs, run_in
from nsm.wire.errors import NsmError, SessionEndedError
from nsm.wire.messages import read
from nsm.wire.sessions import SessionRow
from nsm.wire.transcripts import ExecutionStart, LogEnd, SessionStart
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from nsm.wire.messages import Event
    from nsm.wire.transcripts import Entry


MAX_ENTRIES = 2000
MAX_ENTRY_CHARS = 32 * 1024
"""Longer code is not kept: it was pasted, and is in a file."""

_MAX_FILE_BYTES = 16 * 1024 * 1024
"""Largest part to read; the end counts."""


def history_path(env: str) -> str:
    """Path of an environment's history."""
    # Names are checked by the supervisor; this is in case it is another one's.
    return os.path.join(paths.state_dir(), "history-" + re.sub(r"[^A-Za-z0-9_.-]", "_", env))


class FileHistory(History):
    """The history in a file of mode 0600, which is made on first use; `problem` says why it could
    not be read or written, once that has happened."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.problem: str | None = None

    def load_history_strings(self) -> Iterable[str]:
        """The newest first, each but once."""
        try:
            lines = self._lines()
            if len(lines) > 2 * MAX_ENTRIES:
                # A line that another prompt appends at this moment may be lost.
                paths.replace_file(self.path, b"\n".join([*lines[-MAX_ENTRIES:], b""]))
        except OSError as error:
            self.problem = str(error)
            return []
        entries = filter(None, map(_entry, reversed(lines)))
        return list(dict.fromkeys(entries))[:MAX_ENTRIES]

    def append_string(self, string: str) -> None:
        """Keep what was typed, unless it was the last thing as well."""
        if string != next(iter(self._loaded_strings), None):
            super().append_string(string)

    def store_string(self, string: str) -> None:
        """Append to the file."""
        if len(string) > MAX_ENTRY_CHARS:
            return
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(self.path, flags, 0o600)
            try:
                os.write(file, json.dumps(string).encode("ascii") + b"\n")
            finally:
                os.close(file)
        except OSError as error:
            self.problem = str(error)

    def _lines(self) -> list[bytes]:
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _MAX_FILE_BYTES))
                return file.read(_MAX_FILE_BYTES).splitlines()
        except FileNotFoundError:
            return []


def _entry(line: bytes) -> str | None:
    """Read a line; None if it is damaged."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, str) else None


CLIENT_NAME = "nsm attach"

TRANSCRIPT_GRACE_S = 1.0
"""Time that a result waits for the transcript to tell the same, and an error that the session has
ended for the reason. They are sent at the same time."""


WITHDRAWN_GRACE_S = 0.2
"""The same for what the transcript has not told of yet, and never will if it was withdrawn. (What
is told later is not shown again.)"""

IMPATIENCE_S = 1.0
"""After Ctrl-C, code has that long to stop before the person is told what else there is to do."""

AGAIN_S = 0.1
"""Pause before code is interrupted again that the supervisor did not know yet."""

_STILL_WAITING = "nsm: asked to stop; Ctrl-C again stops waiting for it"


class Ending(NamedTuple):
    """The end of it: a code for the exit, a text for the person, a signal to die of instead."""

    code: int
    text: str = ""
    signal: int = 0


def attach(
    target: str, *, executions: int, timeout_s: float | None, images: str | None = None
) -> int:
    """Join a session, until the person leaves or it ends; returns the exit code.

    Args:
        executions: how many of the last ones are shown at first.
        timeout_s: for each of the person's own; None for the environment's limit.
        images: directory for displayed pictures; None for a fresh one.
    """
    folder = Folder(images)
    # To another machine, ssh may ask for a password: here, and not in a thread, Ctrl-C ends it.
    start.connect(client_socket(), autostart=False).close()
    ending = asyncio.run(_attach(target, executions, timeout_s, folder))
    if ending.text:
        terminal.note(ending.text)
    if ending.signal:
        end_by(ending.signal)
    return ending.code


async def _attach(target: str, executions: int, timeout_s: float | None, folder: Folder) -> Ending:
    async with AsyncClient(name=CLIENT_NAME, autostart=False) as client:
        with suppress(NsmError):  # it may have ended
            found = read(TargetSession, await client.call("find", {"target": target}))
            tell_found(found)
            target = found.id  # after a lost connection, the name may be another's
        attachment = Attachment(client, AttachScreen(sys.stdout), folder, timeout_s)
        with ExitStack() as stack:
            handlers = {number: partial(attachment.die, number) for number in ENDING_SIGNALS}
            stack.enter_context(handled({**handlers, signal.SIGINT: attachment.interrupt}))
            stack.enter_context(quiet(sys.stdin.fileno()))
            await attachment.join(target, executions)
            return await attachment.stay()


class Attachment:
    """A person's place in a session."""

    def __init__(
        self, client: AsyncClient, screen: AttachScreen, folder: Folder, timeout_s: float | None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._client = client
        self._screen = screen
        self._folder = folder
        self._timeout_s = timeout_s
        self._feed = Feed(screen)
        self._continued = Continued()
        self._over: asyncio.Future[Ending] = loop.create_future()
        self._session: asyncio.Future[SessionStart] = loop.create_future()
        self._early: list[Entry] | None = []
        self._prompt: Prompt | None = None
        self._call: asyncio.Task[RunResult] | None = None
        self._execution_id = ""
        self._given_up = asyncio.Event()
        self._impatience: asyncio.TimerHandle | None = None

    @property
    def _name(self) -> str:
        session = self._session.result()
        return session.id if session.name is None else session.name

    async def join(self, target: str, executions: int) -> None:
        """Find the session, and show what happened last."""
        wanted = logs(target, executions=executions, follow=True).args
        reading = in_background(self._client.call("logs", wanted, on_event=self._take_event))
        await _first_of(self._session, reading)
        if reading.done():
            reading.result()
        reading.add_done_callback(self._ended)
        session = await self._session
        rows = await self._client.sessions()
        early, self._early = self._early or [], None
        clients = [entry.client for entry in early if isinstance(entry, ExecutionStart)]
        row = next((row for row in rows if row.id == session.id), None)
        self._screen.lines(banner(session, row, list(dict.fromkeys(clients))))
        for entry in early:
            self._feed.take(entry)

    async def stay(self) -> Ending:
        """Let the person type until it is over."""
        session = self._session.result()
        history = FileHistory(history_path(session.env))
        prompt = self._prompt = Prompt(
            self._client,
            self._feed,
            self._screen,
            session_id=session.id,
            name=self._name,
            interpreter=session.interpreter,
            history=history,
        )
        self._over.add_done_callback(lambda _over: prompt.leave())
        while not self._over.done():
            try:
                code = await prompt.read()
            except KeyboardInterrupt:
                continue
            except EOFError:
                self.leave()
                break
            except OSError:
                if self._over.done():  # the terminal has gone, and a signal has said so
                    break
                raise
            if code.strip():
                await self._run(code, prompt)
            if history.problem is not None:
                self._screen.lines(f"nsm: what you type is not kept: {history.problem}")
                history.problem = None
        return await self._over

    def leave(self) -> None:
        """The person goes."""
        self._end(Ending(EXIT_OK, f"left {formats.visible(self._name)}, which goes on"))

    def die(self, number: int) -> None:
        """A signal ends us."""
        self._end(Ending(EXIT_FAILED, signal=number))

    def interrupt(self) -> None:
        """SIGINT: stop the person's own execution, the second time the waiting for it."""
        if self._call is not None:
            if self._impatience is not None:
                self._given_up.set()
                return
            in_background(self._stop(self._call, self._execution_id))
            loop = asyncio.get_running_loop()
            self._impatience = loop.call_later(IMPATIENCE_S, self._screen.lines, _STILL_WAITING)
        elif self._prompt is not None and self._prompt.app.is_running:
            self._prompt.app.key_processor.send_sigint()
        else:
            self.die(signal.SIGINT)

    async def _stop(self, call: asyncio.Task[RunResult], execution_id: str) -> None:
        """Interrupt the person's own execution, and no other; nothing if it has ended."""
        session = self._session.result().id
        while not call.done():
            with suppress(CutOffError):
                if await self._client.interrupt(session, execution_id):
                    return
            await asyncio.sleep(AGAIN_S)  # a supervisor that has just begun hears of this first

    async def _run(self, code: str, prompt: Prompt) -> None:
        """Run the person's code; returns when it has ended or is no longer waited for."""
        execution_id = self._execution_id = secrets.token_hex(16)
        try:
            options = RunOptions(self._timeout_s, execution_id)
            request = run_in(self._session.result().id, options, checked_code(code))
        except NsmError as error:
            self._tell(error)
            return
        running = self._feed.running
        own = OwnExecution(self._screen, self._folder)
        self._feed.view(execution_id, own)
        call = self._call = in_background(self._client.ask(request))
        self._given_up.clear()
        if running is not None:
            self._screen.lines(f"nsm: waiting behind {label(running)}; Ctrl-C withdraws your code")
        given_up = asyncio.ensure_future(self._given_up.wait())
        try:
            with typing_ahead(prompt.app.input, self.leave):
                await _first_of(call, given_up, self._over)
        finally:
            given_up.cancel()
            self._call = None
            if self._impatience is not None:
                self._impatience.cancel()
                self._impatience = None
        if call.done():
            await self._finish(own, call)
        elif not self._over.done():
            self._screen.lines("nsm: no longer waiting; it goes on")
            self._feed.unview(execution_id)

    async def _finish(self, own: OwnExecution, call: asyncio.Task[RunResult]) -> None:
        error = call.exception()
        if isinstance(error, SessionEndedError):
            await asyncio.wait({self._over}, timeout=TRANSCRIPT_GRACE_S)
            if self._over.done():
                return
        if isinstance(error, NsmError):
            self._tell(error)
            return
        grace_s = TRANSCRIPT_GRACE_S if own.has_started else WITHDRAWN_GRACE_S
        with suppress(TimeoutError):
            await asyncio.wait_for(own.over.wait(), grace_s)
        own.finish(call.result())

    def _tell(self, error: NsmError) -> None:
        self._screen.lines(f"nsm: {formats.error(error.message, error.hint)}")

    def _take_event(self, event: Event) -> None:
        new = self._continued.take(event)
        if self._continued.gap:
            self._continued.gap = False
            self._feed.miss()
            self._screen.lines("nsm: the supervisor was replaced; something may be missing here")
        if new is None:
            return
        try:
            entry = transcripts.entry(new.event, new.data)
        except NsmError as error:
            self._end(Ending(EXIT_FAILED, formats.error(error.message, error.hint)))
            return
        if isinstance(entry, SessionStart):
            if not self._session.done():
                self._session.set_result(entry)
        elif entry is not None and self._early is not None:
            self._early.append(entry)
        elif entry is not None:
            self._feed.take(entry)
            if self._prompt is not None:
                self._prompt.redraw()

    def _ended(self, answer: asyncio.Future[dict[str, Any]]) -> None:
        """The transcript has ended, and so has the session."""
        name = formats.visible(self._name)
        try:
            end = read(LogEnd, answer.result())
        except NsmError as error:
            text = formats.error(error.message, error.hint)
        else:
            why = f": {formats.visible_lines(end.end_reason)}" if end.end_reason else ""
            text = f"session {name} has ended{why}"
        self._end(Ending(EXIT_FAILED, text))

    def _end(self, ending: Ending) -> None:
        if not self._over.done():
            self._over.set_result(ending)


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def banner(session: SessionStart, row: SessionRow | None, clients: list[str]) -> str:
    """Make the first lines for a person: the session as it is now, None if it has just ended, and
    the clients that ran something in it lately."""
    facts = [session.env, f"opened by {session.client}"]
    if row is not None:
        facts += [row.state, formats.count(row.executions, "execution") + " so far"]
    name = session.id if session.name is None else f"{session.name} ({session.id})"
    lines = [f"session {name}: {', '.join(facts)}"]
    if clients:
        lines.append(f"lately used by {others(clients)}")
    lines.append("Ctrl-D leaves it running, Ctrl-C interrupts, Alt-Enter runs code as it is")
    return "\n".join(f"nsm: {formats.visible(line)}" for line in lines)
