"""One session behind a fake supervisor, whose every event a test decides.

For what sees a session through `logs`, `run_in`, `check` and `complete`, as `nsm attach` does.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import samples
from fakesupervisor import Exchange, FakeSupervisor
from nsm.wire.errors import ShuttingDownError, UnknownSessionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

NAME, ID = "work", "s-1"
PATIENCE_S = 120.0


class FakeSession:
    """The session `work`, which the program `claude` has opened.

    Attributes:
        ran: the code that was sent with `run_in`, in order.
        checked: the code that was asked about, in order.
        interrupts: counts requests to interrupt.
        on_run: carries out what `run_in` asks for; returns the changes to the answer.
        on_check: the status and indentation for some code.
        matches: what `complete` offers for the word before the cursor.
        busy: whether there are no completions, and no opinions on code.
    """

    def __init__(self, path: str, **session: Any) -> None:
        self.path = path
        self.supervisor = FakeSupervisor(
            path,
            logs=self._logs,
            sessions=self._sessions,
            run_in=self._run_in,
            check=self._check,
            complete=self._complete,
            interrupt=self._interrupt,
        )
        self.ran: list[str] = []
        self.checked: list[str] = []
        self.interrupts = 0
        self.on_run: Callable[[Own], dict[str, Any]] = nothing
        self.on_check: Callable[[str], tuple[str, str]] = lambda _code: ("complete", "")
        self.matches: list[str] = []
        self.busy = False
        self._session = {
            "id": ID,
            "name": NAME,
            "env": "python",
            "interpreter": "python",
            "client": "claude",
            "scope": "claude",
            "started_at": 1e9,
            "dropped": 0,
        } | session
        self._own: dict[str | None, Own] = {}
        self._lock = threading.Lock()
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._followers: list[Exchange] = []
        self._numbers = itertools.count(1)
        self._reason: str | None = None

    def __enter__(self) -> Self:
        self.supervisor.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.supervisor.__exit__()

    def start(self, code: str, *, client: str = "claude", execution_id: str = "") -> str:
        """Somebody's execution begins; returns its id."""
        number = next(self._numbers)
        execution_id = execution_id or f"x-{number}"
        self._emit(
            "execution",
            execution_id=execution_id,
            number=number,
            client=client,
            code=code,
            code_omitted=0,
            started_at=1e9,
        )
        return execution_id

    def output(self, execution_id: str, text: str, stream: str = "stdout", **more: int) -> None:
        """Let the execution print something."""
        self._emit("output", execution_id=execution_id, stream=stream, text=text, **more)

    def finish(self, execution_id: str, **changes: Any) -> None:
        """Let the execution end."""
        finished: dict[str, Any] = {
            "execution_id": execution_id,
            "exit_code": 0,
            "duration_s": 0.25,
            "timed_out": False,
            "interrupted": False,
            "interpreter_restarted": False,
            "restart_reason": "",
            "displays": [],
            "truncated": {},
            "error": None,
        }
        self._emit("finished", **finished | changes)

    def execute(self, code: str, output: str = "") -> None:
        """All of it at once."""
        execution_id = self.start(code)
        self.output(execution_id, output)
        self.finish(execution_id)

    def say_goodbye(self) -> None:
        """The supervisor says that it ends."""
        with self._lock:
            for follower in self._followers:
                follower.say_goodbye(ShuttingDownError("the supervisor was shut down"))

    def end(self, reason: str) -> None:
        """The session ends."""
        with self._lock:
            self._reason = reason
            for follower in self._followers:
                follower.cancelled.set()

    def _emit(self, event: str, **data: Any) -> None:
        with self._lock:
            self._events.append((event, data))
            for follower in self._followers:
                follower.emit(event, data)

    def _logs(self, exchange: Exchange) -> dict[str, Any]:
        if exchange.args["target"] not in (NAME, ID):
            raise UnknownSessionError("there is no such session", hint="`nsm ps` lists them.")
        with self._lock:
            exchange.emit("session", self._session)
            for event, data in self._events:
                exchange.emit(event, data)
            self._followers.append(exchange)
            if self._reason:
                exchange.cancelled.set()
        exchange.cancelled.wait(PATIENCE_S)
        with self._lock:
            self._followers.remove(exchange)
        state = "ended" if self._reason else "idle"
        return {"id": ID, "name": NAME, "state": state, "end_reason": self._reason, "executions": 0}

    def _sessions(self, _exchange: Exchange) -> dict[str, Any]:
        return {"sessions": [samples.session_row(id=ID, name=NAME, client="claude")]}

    def _run_in(self, exchange: Exchange) -> dict[str, Any]:
        self.ran.append(exchange.args["code"])
        own = self._own[exchange.args["execution_id"]] = Own(self, exchange)
        return samples.run_result(execution_id=own.id, **self.on_run(own))

    def _check(self, exchange: Exchange) -> dict[str, Any]:
        code = exchange.args["code"]
        self.checked.append(code)
        status, indent = ("unknown", "") if self.busy else self.on_check(code)
        return {"status": status, "indent": indent}

    def _complete(self, exchange: Exchange) -> dict[str, Any]:
        cursor = exchange.args["cursor"]
        before = exchange.args["code"][:cursor]
        word = before[len(before.rstrip("abcdefghijklmnopqrstuvwxyz")) :]
        matches = [match for match in self.matches if match.startswith(word)]
        return {
            "start": cursor - len(word),
            "end": cursor,
            "matches": [] if self.busy else matches,
            "available": not self.busy,
        }

    def _interrupt(self, exchange: Exchange) -> dict[str, Any]:
        self.interrupts += 1
        if (own := self._own.get(exchange.args.get("execution_id"))) is not None:
            own.interrupted.set()
        return {"interrupted": True, "session": ID}


def nothing(own: Own) -> dict[str, Any]:
    """Code that does nothing."""
    own.start()
    own.finish()
    return {}


class Own:
    """An execution of the client under test, for `FakeSession.on_run`.

    Attributes:
        exchange: its request.
    """

    def __init__(self, session: FakeSession, exchange: Exchange) -> None:
        self.exchange = exchange
        self.id: str = exchange.args["execution_id"]
        self._session = session
        self.interrupted = threading.Event()

    def start(self) -> None:
        self._session.start(self.exchange.args["code"], client="nsm attach", execution_id=self.id)

    def output(self, text: str, stream: str = "stdout") -> None:
        self._session.output(self.id, text, stream)

    def finish(self, **changes: Any) -> None:
        self._session.finish(self.id, **changes)

    def wait_for_interrupt(self) -> None:
        assert self.interrupted.wait(PATIENCE_S)
