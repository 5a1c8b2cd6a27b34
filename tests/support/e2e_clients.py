"""Clients of a real supervisor that wait while something happens to it."""

from __future__ import annotations

import json
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from e2e_support import END_TIMEOUT_S, Supervisor, program, supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextlib import ExitStack


class Mcp:
    """An MCP client of `nsm-mcp`, one call at a time.

    Attributes:
        progress: what was reported: the token, and seconds.
    """

    def __init__(
        self,
        it: Supervisor,
        stack: ExitStack,
        *,
        name: str = "c",
        command: Sequence[str] = (program("nsm-mcp"),),
    ) -> None:
        self.process = stack.enter_context(
            subprocess.Popen(
                command,
                env={**it.variables, "NSM_SCOPE": "mcp", "NSM_AUTOSTART": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        self.progress: list[tuple[int, float]] = []
        self.answers: list[dict[str, Any]] = []
        info = {"name": name, "version": "1"}
        version = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        self.send("initialize", version, 0)
        self.answer()
        self.send("notifications/initialized")

    def send(self, method: str, params: dict[str, Any] | None = None, known: Any = None) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        message |= {} if params is None else {"params": params}
        message |= {} if known is None else {"id": known}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def run(self, code: str, known: int, session: str = "s", env: str = "python") -> None:
        self.call("run", {"env": env, "session": session, "code": code}, known)

    def call(self, tool: str, arguments: dict[str, Any], known: int) -> None:
        meta = {"progressToken": known}
        self.send("tools/call", {"name": tool, "arguments": arguments, "_meta": meta}, known)

    @property
    def tokens(self) -> set[int]:
        return {token for token, _ in self.progress}

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        if message.get("method") == "notifications/progress":
            told = message["params"]
            self.progress.append((told["progressToken"], told["progress"]))
        if "id" in message:
            self.answers.append(message)
        return message

    def answer(self) -> dict[str, Any]:
        while "id" not in (message := self.next()):
            pass
        return message

    def text(self) -> str:
        text: str = self.answer()["result"]["content"][0]["text"]
        return text.strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(END_TIMEOUT_S) == 0


class Task(threading.Thread):
    """Something that waits for its answer, beside the test."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:  # noqa: BLE001  # shown by the test
            self.result = error

    def outcome(self) -> Any:
        self.join(60)
        assert not self.is_alive()
        return self.result


@contextmanager
def replaced(
    first: Supervisor, meanwhile: Callable[[], None] = lambda: None
) -> Generator[Supervisor]:
    """The supervisor is killed, and another one is there.

    Args:
        meanwhile: called while there is none.
    """
    first.process.kill()
    first.process.wait()
    meanwhile()
    with supervisor(first.directory, keep=True) as it:
        yield it
