"""Keys of the prompt that differ from prompt_toolkit's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from prompt_toolkit.application import get_app
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyPress, KeyPressEvent
    from prompt_toolkit.key_binding.key_processor import KeyProcessor

    from nsm.wire.sessions import Check

INDENT = "    "


class KeyActions(Protocol):
    """Actions of the prompt for its keys."""

    async def check(self, code: str) -> Check:
        """Tell whether code is whole."""
        ...

    def holds_back(self, code: str) -> bool:
        """Return whether a person should think twice, and has been told why."""
        ...

    def interrupt_others(self) -> None:
        """Ctrl-C at an empty prompt."""
        ...

    def undo(self) -> None:
        """Ctrl-X Ctrl-U at an empty prompt; elsewhere it undoes typing."""
        ...


def bindings(actions: KeyActions) -> KeyBindings:
    """The key bindings of a prompt."""
    keys = KeyBindings()
    at_prompt = has_focus(DEFAULT_BUFFER)
    held: list[KeyPress] = []
    checking = False

    @keys.add("enter", filter=at_prompt)
    @keys.add("c-j", filter=at_prompt)  # what a pasting terminal or `tmux send-keys` may send
    def _(event: KeyPressEvent) -> None:
        nonlocal checking
        buffer = event.current_buffer
        if take_completion(buffer):
            return
        if not buffer.text.strip():
            buffer.validate_and_handle()
        elif not is_at_last_line(buffer.document):
            begin_line(buffer, leading_space(buffer.document.current_line_before_cursor))
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
            begin_line(buffer, answer.indent)
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
        begin_line(buffer, leading_space(buffer.document.current_line_before_cursor))

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


def take_completion(buffer: Buffer) -> bool:
    """Put the chosen completion in, if a menu is open."""
    state = buffer.complete_state
    if state is None:
        return False
    if state.current_completion is None:
        buffer.cancel_completion()
        return False
    buffer.complete_state = None  # moving through the menu has put it in
    return True


def begin_line(buffer: Buffer, indentation: str) -> None:
    """Begin a new line at the cursor."""
    buffer.insert_text("\n" + indentation)


def is_at_last_line(document: Document) -> bool:
    """Return whether no more lines with text follow the cursor's."""
    return not document.text_after_cursor.partition("\n")[2].strip()


def is_in_indentation(document: Document) -> bool:
    """Return whether the cursor is in a line's leading white space, where Tab completes nothing."""
    return not document.current_line_before_cursor.strip()


def leading_space(line: str) -> str:
    """The indentation of a line."""
    return line[: len(line) - len(line.lstrip())]
