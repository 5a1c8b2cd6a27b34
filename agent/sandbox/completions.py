"""Questions to an interpreter: whether a text is a whole input, how it could go on, and a fork."""

from __future__ import annotations

import time

from sandbox.framing import RequestError, text_field, whole_field
from sandbox.workers.python.completion import MAX_MATCH, MAX_MATCHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from sandbox.interpreters.base import Interpreter, Interpreters
    from sandbox.session import SharedSession


MAX_QUESTION_CHARS = 64 * 1024
"""Largest text to check or complete. Nobody who types a longer one waits for an answer."""

QUESTION_S = 1.0
"""Within that time a question is answered, if only by saying that nobody could tell."""

FORK_S = 60.0
"""Time for a fork, during which a tracer outside copies the session's files."""

CHECK_STATUSES = ("complete", "incomplete", "invalid")


class Questions:
    """Answers `check`, `complete` and `fork`, by asking an interpreter."""

    def __init__(self, session: SharedSession, interpreters: Interpreters) -> None:
        self._session = session
        self._interpreters = interpreters
        self._asked = 0
        self._last_fork: tuple[object, bool] | None = None

    def _ask(
        self,
        interpreter: Interpreter,
        kind: str,
        fields: Mapping[str, Any],
        settle: Callable[[Mapping[str, Any]], None],
        seconds: float = QUESTION_S,
    ) -> None:
        """Have `settle` called with an interpreter's answer, or with nothing within that time.

        A question that is not answered yet, be it long given up, keeps others back: they would
        only pile up in front of an interpreter that is busy.
        """
        if not interpreter.pid or interpreter.question is not None:
            settle({})
            return
        self._asked += 1
        number, timer, poller = self._asked, f"question {self._asked}", self._session.poller

        def settled(answer: Mapping[str, Any]) -> None:
            poller.cancel(timer)
            settle(answer)

        def give_up() -> None:
            interpreter.question = number, lambda _: None
            settle({})

        interpreter.question = number, settled
        poller.at(timer, time.monotonic() + seconds, give_up)
        interpreter.send_question(kind, number, fields)

    def complete(self, message: Mapping[str, Any]) -> None:
        interpreter = self._interpreters.named(message.get("interpreter"))
        request_id, code = message["id"], text_field(message, "code")
        cursor = whole_field(message, "cursor", len(code), high=len(code))
        before = code[:cursor]

        def settle(answer: Mapping[str, Any]) -> None:
            prefix: Any = answer.get("prefix")
            found: list[Any] | None = answer.get("matches")
            available = isinstance(prefix, str) and before.endswith(prefix)
            matches = found if available and type(found) is list else []
            self._session.send(
                {
                    "type": "completions",
                    "id": request_id,
                    "start": cursor - len(str(prefix)) if available else cursor,
                    "end": cursor,
                    "matches": [text for text in matches if _may_be_offered(text)][:MAX_MATCHES],
                    "available": available,
                }
            )

        if (
            interpreter.runs
            or "complete" not in interpreter.answers
            or len(code) > MAX_QUESTION_CHARS
        ):
            settle({})
        else:
            fields = {"before": before, "next": code[cursor : cursor + 1]}
            self._ask(interpreter, "complete", fields, settle)

    def fork(self, message: Mapping[str, Any]) -> None:
        """Have Python fork, for a tracer that waits for the child; it forks Bash by itself."""
        self._last_fork = message["id"], self._session.has_forks
        found = (self._interpreters.get(name) for name in ("python", "bash"))
        forked = next((each for each in found if each is not None and each.pid), None)
        if forked is None or forked.steps or forked.question is not None:
            raise RequestError("cannot fork: no interpreter waits for code")
        if any(each.execution is not None for each in self._interpreters.values()):
            raise RequestError("cannot fork: code is running")
        # First: what starts from now on must not reach the fork, which may be there in a moment.
        self._session.has_forks = True

        def settle(answer: Mapping[str, Any]) -> None:
            error = answer.get("error", "" if answer else "it did not answer")
            self._session.send({"type": "forked", "id": message["id"], "error": f"{error:.1000}"})

        if "fork" in forked.answers:
            self._ask(forked, "fork", {}, settle, FORK_S)
        else:
            settle({"error": ""})

    def fork_failed(self, message: Mapping[str, Any]) -> None:
        """Go on as before the last `fork`, of which nothing is left."""
        if self._last_fork is not None and self._last_fork[0] == message.get("id"):
            self._session.has_forks = self._last_fork[1]

    def check(self, message: Mapping[str, Any]) -> None:
        """Say whether a text is a whole input; only Node is asked in its session."""
        interpreter = self._interpreters.named(message.get("interpreter"))
        code = text_field(message, "code")

        def settle(answer: Mapping[str, Any]) -> None:
            status = answer.get("status")
            status = status if status in CHECK_STATUSES else "unknown"
            self._session.send(
                {"type": "checked", "id": message["id"], "status": status, "indent": ""}
            )

        if "check" not in interpreter.answers or len(code) > MAX_QUESTION_CHARS:
            settle({})
        else:
            self._ask(interpreter, "check", {"code": code}, settle)


def _may_be_offered(text: object) -> bool:
    return isinstance(text, str) and len(text) <= MAX_MATCH and text.isprintable()
