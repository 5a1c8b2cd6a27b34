"""Interpreters whose control socket carries frames."""

from __future__ import annotations

import os

from sandbox.displays import DISPLAY_BYTES
from sandbox.framing import FrameError, MessageReader, encode_frame
from sandbox.interpreters.base import Interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sandbox.interpreters.base import InterpreterEvents
    from sandbox.process_trees import ProcessTrees
    from sandbox.session import SharedSession


WORKER_FRAME_BYTES = 4 * DISPLAY_BYTES
"""Largest frame taken from an interpreter, which may be under the control of hostile code."""


class FramedInterpreter(Interpreter):
    """One whose control socket carries frames, as opposed to lines."""

    def __init__(
        self, session: SharedSession, trees: ProcessTrees, events: InterpreterEvents, program: str
    ) -> None:
        super().__init__(session, trees, events, program)
        self._reader = MessageReader(WORKER_FRAME_BYTES)
        self._token = ""

    def begin(self) -> None:
        self._reader = MessageReader(WORKER_FRAME_BYTES)

    def send(self, message: Mapping[str, Any]) -> None:
        if self.link is not None:
            self.link.send(encode_frame(message))

    def send_code(self, number: int, code: str, *, one_shot: bool = False, stdin: str = "") -> None:
        # Told with the end again: code of an earlier execution cannot have foreseen it.
        self._token = os.urandom(16).hex()
        message: dict[str, Any] = {
            "type": "run",
            "id": number,
            "token": self._token,
            "code": code.encode("utf-8", "replace").decode(),  # Python refuses lone surrogates
        }
        if one_shot:
            message["one_shot"] = True
        if stdin:
            message["stdin"] = stdin
        if self.argv:
            message["argv"] = self.argv
        self.send(message)

    def send_question(self, kind: str, number: int, fields: Mapping[str, Any]) -> None:
        self.send({"type": kind, "id": number, **fields})

    def on_begun(self) -> None:
        """The interpreter says that it is set up."""

    def on_started(self) -> None:
        """The interpreter says that the code can be interrupted from now on."""

    def on_data(self, data: bytes) -> None:
        reader = self._reader
        reader.receive_data(data)
        while self._reader is reader:
            try:
                message = reader.next_message()
            except FrameError as error:
                self.end(f"broke its control socket's protocol: {error}")
                return
            if message is None:
                return
            kind = message.get("type")
            if kind == "begun":
                self.on_begun()
            elif kind == "started":
                self.on_started()
            elif kind == "display":
                self.add_display(message.get("data"))
            elif kind == "note":
                self.add_note(message.get("text"))
            elif kind == "imported":
                self.add_import(message.get("module"), message.get("seconds"))
            elif kind == "done" and message.get("token") == self._token:
                self.events.done(self, message.get("id"), message.get("exit_code"))
            elif kind == "answer":
                self.on_answer(message)

    def on_answer(self, message: Mapping[str, Any]) -> None:
        """Take an answer; one to a question that was given up frees the place for another."""
        question = self.question
        if question is not None and question.number == message.get("id"):
            self.question = None
            question.settle(message)
