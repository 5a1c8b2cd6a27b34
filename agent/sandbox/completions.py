"""Questions about a text: whether it is a whole input, and how it could go on."""

from __future__ import annotations

import signal
import time

from sandbox.checks import InputCheck, suggest_indent
from sandbox.fields import is_id
from sandbox.processes import signal_child
from sandbox.workers.python.completion import MAX_MATCH, MAX_MATCHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from sandbox.agent import Agent
    from sandbox.interpreters.base import Interpreter


MAX_QUESTION_CHARS = 64 * 1024
"""Largest text to check or complete. Nobody who types a longer one waits for an answer."""

QUESTION_S = 1.0
"""Within that time a question is answered, if only by saying that nobody could tell."""

FORK_S = 60.0
"""Time for a fork, during which a tracer outside copies the session's files."""

MAX_CHECKS = 4
"""Children that check a text, at a time."""


class InterpreterQuestion:
    """Question to an interpreter besides running code, which may keep it too busy to answer.

    Args:
        number: tells its answer from that to a question before.
        settle: called once, with the answer, or with nothing in it if there is none.
    """

    def __init__(self, number: int, settle: Callable[[Mapping[str, Any]], None]) -> None:
        self.number = number
        self._settle = settle
        self._settled = False

    def settle(self, answer: Mapping[str, Any]) -> None:
        if not self._settled:
            self._settled = True
            self._settle(answer)


class Questions:
    """Answers `check` and `complete`, by asking an interpreter or a process made for it.

    Attributes:
        checks: processes that check a text, by their ids, and the ids of the requests.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._asked = 0
        self.checks: dict[int, tuple[InputCheck, str | int]] = {}

    def _interpreter_asked(self, message: Mapping[str, Any]) -> Interpreter | None:
        """The interpreter that a question with text is for; None if the question is none."""
        request_id, name = message.get("id"), message.get("interpreter")
        interpreter = self._agent.interpreters.get(name) if isinstance(name, str) else None
        if not is_id(request_id):
            self._agent.fail(f"{message['type']} needs an id")
        elif not isinstance(message.get("code"), str):
            self._agent.fail(f"{message['type']} needs code, a text", request_id)
        elif interpreter is None:
            have = ", ".join(sorted(self._agent.interpreters))
            self._agent.fail(
                f"interpreter {name!r:.50} is not in this session, which has {have}", request_id
            )
        else:
            return interpreter
        return None

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
        timer = f"question {self._asked}"

        def settled(answer: Mapping[str, Any]) -> None:
            self._agent.poller.cancel(timer)
            settle(answer)

        question = interpreter.question = InterpreterQuestion(self._asked, settled)
        self._agent.poller.at(timer, time.monotonic() + seconds, lambda: question.settle({}))
        interpreter.send_question(kind, question.number, fields)

    def complete(self, message: Mapping[str, Any]) -> None:
        interpreter = self._interpreter_asked(message)
        if interpreter is None:
            return
        request_id, code, cursor = message["id"], message["code"], message.get("cursor")
        if not isinstance(cursor, int) or cursor is True or not 0 <= cursor <= len(code):
            self._agent.fail(f"cursor is {cursor!r:.50}, expected 0 to {len(code)}", request_id)
            return
        before = code[:cursor]

        def settle(answer: Mapping[str, Any]) -> None:
            prefix: Any = answer.get("prefix")
            found: list[Any] | None = answer.get("matches")
            available = isinstance(prefix, str) and before.endswith(prefix)
            matches = found if available and type(found) is list else []
            self._agent.send(
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
        interpreters = self._agent.interpreters
        request_id = message.get("id")
        found = (interpreters.get(name) for name in ("python", "bash"))
        forked = next((each for each in found if each is not None and each.pid), None)
        if not is_id(request_id):
            self._agent.fail("fork needs an id")
            return
        if forked is None or forked.steps or forked.question is not None:
            self._agent.fail("cannot fork: no interpreter waits for code", request_id)
            return
        if self._agent.running is not None:
            self._agent.fail("cannot fork: code is running", request_id)
            return
        # First: what starts from now on must not reach the fork, which may be there in a moment.
        self._agent.has_forks = True

        def settle(answer: Mapping[str, Any]) -> None:
            error = answer.get("error", "" if answer else "it did not answer")
            self._agent.send({"type": "forked", "id": request_id, "error": f"{error:.1000}"})

        if "fork" in forked.answers:
            self._ask(forked, "fork", {}, settle, FORK_S)
        else:
            settle({"error": ""})

    def check(self, message: Mapping[str, Any]) -> None:
        interpreter = self._interpreter_asked(message)
        if interpreter is None:
            return
        request_id, code = message["id"], message["code"]
        if len(code) > MAX_QUESTION_CHARS:
            self._tell_checked(request_id, "unknown", "")
        elif "check" in interpreter.answers:

            def settle(answer: Mapping[str, Any]) -> None:
                status, in_text = answer.get("status"), answer.get("in_text") is True
                if status not in InputCheck.STATUSES:
                    status = "unknown"
                indents = status == "incomplete" and not in_text
                self._tell_checked(request_id, status, suggest_indent(code) if indents else "")

            self._ask(interpreter, "check", {"code": code}, settle)
        else:
            self._begin_check(request_id, interpreter, code)

    def _tell_checked(self, request_id: str | int, status: object, indent: str) -> None:
        self._agent.send({"type": "checked", "id": request_id, "status": status, "indent": indent})

    def _begin_check(self, request_id: str | int, interpreter: Interpreter, code: str) -> None:
        try:
            if len(self.checks) >= MAX_CHECKS:
                raise BlockingIOError
            check = InputCheck(interpreter.name, interpreter.program, code, self._agent.file)
        except OSError:
            self._tell_checked(request_id, "unknown", "")
            return
        pid = check.pid
        self.checks[pid] = check, request_id
        self._agent.poller.at(
            f"check {pid}",
            time.monotonic() + QUESTION_S,
            lambda: signal_child(pid, signal.SIGKILL),
        )

    def on_checked(self, pid: int, wait_status: int) -> None:
        check, request_id = self.checks.pop(pid)
        self._agent.poller.cancel(f"check {pid}")
        self._tell_checked(request_id, *check.finish(wait_status))


def _may_be_offered(text: object) -> bool:
    return isinstance(text, str) and len(text) <= MAX_MATCH and text.isprintable()
