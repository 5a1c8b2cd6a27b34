"""The line editor: what it looks like, and what Enter and Tab ask."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.shortcuts import PromptSession
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from nsm.cli.attach.feed import label
from nsm.cli.attach.whole_input import UNKNOWN, check_bash, check_python, with_indent
from nsm.cli.render import formats
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterable

    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPress, KeyPressEvent
    from prompt_toolkit.key_binding.key_processor import KeyProcessor
    from prompt_toolkit.output import Output

    from nsm.cli.attach.feed import Feed
    from nsm.cli.attach.screen import AttachScreen
    from nsm.client.asynchronous import AsyncClient
    from nsm.wire.sessions import Check, Completions

T = TypeVar("T")

CHECK_TIMEOUT_S = 1.0
"""Time that Enter waits for what Node says in the session; without an answer it runs the code."""

COMPLETE_TIMEOUT_S = 2.0
"""Longer than the second that the agent gives an interpreter."""

CONFIRM_S = 3.0
"""Time that the first Ctrl-C waits for the second, and that a hint stays."""

_MARKS = {"python": (">>>", "..."), "bash": ("$", ">"), "node": (">", "...")}
"""End of each interpreter's own prompt, and its prompt for more."""

_UNDO = "undo"
"""Stands for an undo that has been explained."""

_GOODBYES = ("exit", "logout")
"""Words that people type to leave a shell. Here they would end it, with everybody's variables."""

_STYLE = Style.from_dict({"session": "bold", "status": "ansibrightblack", "aborting": ""})


class Prompt(Completer):
    """A prompt for one session, shown again and again; `app` is prompt_toolkit's application behind
    it."""

    def __init__(
        self,
        client: AsyncClient,
        feed: Feed,
        screen: AttachScreen,
        *,
        session_id: str,
        name: str,
        interpreter: str,
        history: History,
        keyboard: Input | None = None,
        output: Output | None = None,
    ) -> None:
        """Make it; nothing is shown yet. `keyboard` and `output` stand in place of the terminal."""
        self._client = client
        self._feed = feed
        self._screen = screen
        self._id = session_id
        self._name = formats.visible(name)
        self._mark, self._more = _MARKS.get(interpreter, (">", "..."))
        self._hint = ""
        self._hint_ends: asyncio.TimerHandle | None = None
        self._armed = ""
        self._interpreter = interpreter
        self._session: PromptSession[str] = PromptSession(
            self._message,
            multiline=True,
            prompt_continuation=self._continuation,
            key_bindings=_bindings(self),
            completer=self,
            complete_while_typing=False,
            history=history,
            search_ignore_case=True,
            enable_open_in_editor=True,
            tempfile_suffix={"python": ".py", "bash": ".sh", "node": ".js"}.get(interpreter, ""),
            enable_suspend=True,
            style=_STYLE,
            input_processors=[TabsProcessor(char1=" ", char2=" ")],  # pasted code has some
            include_default_pygments_style=False,
            input=keyboard,
            output=output,
        )
        self.app = self._session.app
        self.app.terminal_size_polling_interval = None  # SIGWINCH tells
        # A terminal that does not tell where its cursor is does well enough; no warning is due.
        self.app.renderer.cpr_not_supported_callback = None

    async def read(self) -> str:
        """Let the person type. KeyboardInterrupt: the line was cleared. EOFError: Ctrl-D, or
        `leave`."""
        self._end_hint()
        with self._screen.above(self.app):
            return await self._session.prompt_async(
                set_exception_handler=False, handle_sigint=False
            )

    def leave(self) -> None:
        """Take the prompt off the screen, if it is shown."""
        if self.app.is_running and not self.app.is_done:
            self.app.exit(exception=EOFError())

    def redraw(self) -> None:
        """Show what has changed around it."""
        self.app.invalidate()

    def hint(self, text: str) -> None:
        """Say something above the prompt for some seconds."""
        if self._hint_ends is not None:
            self._hint_ends.cancel()
        self._hint = text
        self._hint_ends = asyncio.get_running_loop().call_later(CONFIRM_S, self._end_hint)
        self.redraw()

    async def check(self, code: str) -> Check:
        """Tell whether code is whole; ``unknown`` if that cannot be told in time."""
        if self._interpreter == "python":
            return check_python(code)
        if self._interpreter == "bash":
            return await asyncio.to_thread(check_bash, code)
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                return with_indent((await self._client.check(self._id, code)).status, code)
        except (NsmError, TimeoutError):
            return UNKNOWN

    # The arguments of these two have prompt_toolkit's names.

    def get_completions(
        self,
        document: Document,  # noqa: ARG002
        complete_event: CompleteEvent,  # noqa: ARG002
    ) -> Iterable[Completion]:
        """None: they are only to be had by waiting."""
        return ()

    async def get_completions_async(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002
    ) -> AsyncGenerator[Completion, None]:
        """Yield the names that live in the session."""
        found = await self._complete(document)
        if found is not None:
            for completion in completions(found, document):
                yield completion

    async def _complete(self, document: Document) -> Completions | None:
        """Ask the session what could stand at the cursor; None if it does not tell in time."""
        try:
            async with asyncio.timeout(COMPLETE_TIMEOUT_S):
                found = await self._client.complete(
                    self._id, document.text, document.cursor_position
                )
        except NsmError as error:
            self.hint(f"no completions: {formats.visible(error.message)}")
        except TimeoutError:
            self.hint(f"no completions within {COMPLETE_TIMEOUT_S:g} s")
        else:
            if found.available:
                return found
            when = "while code runs" if self._feed.running else "now"
            self.hint(f"no completions {'in Bash' if self._interpreter == 'bash' else when}")
        return None

    def holds_back(self, code: str) -> bool:
        """Return whether a person should think twice, and has been told why: only the first
        time."""
        code = code.strip()
        if self._interpreter != "bash" or code not in _GOODBYES or self._armed == code:
            return False
        self.hint(f"Ctrl-D leaves; Enter again runs `{code}`, which ends the shell of the session")
        self._armed = code
        return True

    def interrupt_others(self) -> None:
        """Ctrl-C at an empty prompt: explain, then interrupt what somebody else runs."""
        running = self._feed.of_others
        if running is None:
            self.hint(f"nothing runs; Ctrl-D leaves, and {self._name} goes on")
        elif self._armed != running.execution_id:
            self._armed = running.execution_id
            self.hint(f"Ctrl-C again interrupts {label(running)}")
        else:
            self._armed = ""
            in_background(self._interrupt(label(running)))

    def undo(self) -> None:
        """Ctrl-X Ctrl-U at an empty prompt: explain, then take back the session's last call."""
        if self._armed != _UNDO:
            self.hint("Ctrl-X Ctrl-U again takes back the last call of the session")
            self._armed = _UNDO
            return
        self._end_hint()
        in_background(self._undo())

    async def _undo(self) -> None:
        """Undo, and show what the transcript does not: an error, or notes."""
        try:
            notes = (await self._client.undo(self._id)).notes
        except NsmError as error:
            notes = (str(error),)
        for note in notes:
            self._screen.lines(f"nsm: {formats.visible_lines(note)}")

    async def _interrupt(self, what: str) -> None:
        try:
            interrupted = await self._client.interrupt(self._id)
        except NsmError as error:
            self._screen.lines(f"nsm: {formats.visible_lines(str(error))}")
        else:
            self.hint(f"interrupted {what}" if interrupted else f"{what} had ended already")

    def _end_hint(self) -> None:
        if self._hint_ends is not None:
            self._hint_ends.cancel()
        self._hint = self._armed = ""
        self.redraw()

    def _message(self) -> StyleAndTextTuples:
        """The prompt, and above it what happens elsewhere."""
        parts: StyleAndTextTuples = []
        if not self.app.is_done:
            width = self.app.output.get_size().columns
            for line in (self._feed.unfinished, self._feed.status, self._hint):
                if line:
                    parts.append(("class:status", end_of_line(line, width) + "\n"))
        return [*parts, ("class:session", self._name), ("", f" {self._mark} ")]

    def _continuation(self, width: int, _line: int, wrapped: int) -> str:
        return " " * width if wrapped else f"{self._more} ".rjust(width)


def completions(found: Completions, document: Document) -> list[Completion]:
    """The session's matches as the editor takes them, which replaces only before the cursor."""
    cursor = document.cursor_position
    if not 0 <= found.start <= cursor <= found.end <= len(document.text):
        return []
    behind = document.text[cursor : found.end]
    return [
        Completion(match.removesuffix(behind), found.start - cursor, display=match)
        for match in found.matches
        if match.isprintable()
    ]


def end_of_line(line: str, width: int) -> str:
    """The end of a line as fits into so many columns."""
    line = line.expandtabs()
    columns, at = 0, len(line)
    while at and (columns := columns + get_cwidth(line[at - 1])) < width:
        at -= 1
    return line[at:]


_background = set[asyncio.Task[Any]]()
"""Tasks that nobody else may hold; asyncio forgets those."""


def in_background(call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin a call of the client. It goes on when nobody waits for it any more, and asyncio is not
    to complain of its error then.
    """

    def ended(task: asyncio.Task[T]) -> None:
        _background.discard(task)
        if not task.cancelled():
            task.exception()

    task = asyncio.get_running_loop().create_task(call)
    _background.add(task)
    task.add_done_callback(ended)
    return task


# Keys that differ from prompt_toolkit's own.

INDENT = "    "


def _bindings(actions: Prompt) -> KeyBindings:
    keys = KeyBindings()
    at_prompt = has_focus(DEFAULT_BUFFER)
    held: list[KeyPress] = []
    checking = False

    @keys.add("enter", filter=at_prompt)
    @keys.add("c-j", filter=at_prompt)  # what a pasting terminal or `tmux send-keys` may send
    def _(event: KeyPressEvent) -> None:
        nonlocal checking
        buffer = event.current_buffer
        if _take_completion(buffer):
            return
        if not buffer.text.strip():
            buffer.validate_and_handle()
        elif not is_at_last_line(buffer.document):
            _begin_line(buffer, _leading_space(buffer.document.current_line_before_cursor))
        elif not actions.holds_back(buffer.text):
            checking = True
            event.app.create_background_task(run_or_go_on(buffer, event.key_processor))

    async def run_or_go_on(buffer: Buffer, processor: KeyProcessor) -> None:
        nonlocal checking
        try:
            answer = await actions.check(buffer.text)
        finally:
            checking = False
        if answer.status == "incomplete":
            buffer.cursor_position = len(buffer.text)
            _begin_line(buffer, answer.indent)
        else:
            buffer.validate_and_handle()
        # What was typed meanwhile comes after the line that was begun, or is for the next prompt.
        processor.feed_multiple(held[:])
        held.clear()
        processor.process_keys()

    @keys.add(Keys.Any, filter=Condition(lambda: checking), eager=True)
    def _(event: KeyPressEvent) -> None:
        held.extend(event.key_sequence)

    @keys.add("escape", "enter", filter=at_prompt)
    @keys.add("escape", "c-j", filter=at_prompt)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("c-o", filter=at_prompt)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        _begin_line(buffer, _leading_space(buffer.document.current_line_before_cursor))

    @keys.add("c-c", filter=at_prompt)
    @keys.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        if event.app.current_buffer.text:
            event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")
        else:
            actions.interrupt_others()

    is_empty = Condition(lambda: not get_app().current_buffer.text)

    @keys.add("c-x", "c-u", filter=at_prompt & is_empty)
    def _(_event: KeyPressEvent) -> None:
        actions.undo()

    in_indentation = Condition(lambda: is_in_indentation(get_app().current_buffer.document))

    @keys.add("tab", filter=at_prompt & in_indentation)
    def _(event: KeyPressEvent) -> None:
        column = event.current_buffer.document.cursor_position_col
        event.current_buffer.insert_text(INDENT[column % len(INDENT) :])

    @keys.add("backspace", filter=at_prompt & in_indentation)
    def _(event: KeyPressEvent) -> None:
        document = event.current_buffer.document
        column = document.cursor_position_col
        by_steps = column and not column % len(INDENT) and document.current_line.startswith(" ")
        event.current_buffer.delete_before_cursor(len(INDENT) if by_steps else 1)

    return keys


def _take_completion(buffer: Buffer) -> bool:
    """Put the chosen completion in, if a menu is open."""
    state = buffer.complete_state
    if state is None:
        return False
    if state.current_completion is None:
        buffer.cancel_completion()
        return False
    buffer.complete_state = None  # moving through the menu has put it in
    return True


def _begin_line(buffer: Buffer, indentation: str) -> None:
    buffer.insert_text("\n" + indentation)


def is_at_last_line(document: Document) -> bool:
    """Return whether no more lines with text follow the cursor's."""
    return not document.text_after_cursor.partition("\n")[2].strip()


def is_in_indentation(document: Document) -> bool:
    """Return whether the cursor is in a line's leading white space, where Tab completes nothing."""
    return not document.current_line_before_cursor.strip()


def _leading_space(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
