"""The programs that people and models call nsm with, each as a function from code to `Reply`.

Every caller outlives supervisors: it connects again where it lost its connection, and starts a
supervisor where there is none.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import trio

import nsm
from nsm.wire.errors import (
    DisconnectedError,
    NotRunningError,
    NsmError,
    OverloadedError,
    SessionEndedError,
    SessionLimitError,
    ShuttingDownError,
    StartFailedError,
)
from soak.ledgers import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsm.wire.code import RunResult

T = TypeVar("T")

SCOPE = "soak"
ANSWER_S = 90.0
"""Time limit for one answer, beyond everything that a stopped process or a restart may cost."""

REFUSED = (OverloadedError, SessionLimitError, ShuttingDownError, StartFailedError, NotRunningError)
"""Errors that say that the code was not run."""


class Caller(Protocol):
    """Runs code, whatever happens meanwhile."""

    scope: str

    def call(self, env: str, session: str | None, code: str, *, stream: bool) -> Reply:
        """Run code in a session, or in a jail of its own for None."""
        ...

    def close(self) -> None:
        """Let go of what is open."""
        ...


def of_result(result: RunResult, streamed: str = "") -> Reply:
    """A result of the API."""
    return Reply(
        kind="ran",
        text=result.stdout,
        streamed=streamed,
        created=result.session.created,
        replaced=result.session.replaced,
        restarted=result.restart_reason if result.interpreter_restarted else "",
        failed=result.exit_code != 0,
    )


def of_error(error: NsmError) -> Reply:
    """An error of the API."""
    text = f"{error.code}: {error.message}"
    if isinstance(error, SessionEndedError):
        return Reply(kind="ended", text=text)
    if isinstance(error, REFUSED):
        return Reply(kind="refused", text=text)
    if isinstance(error, DisconnectedError) or error.code in ("fate-unknown", "result-lost"):
        return Reply(kind="unknown", text=text)
    raise error


class ApiCaller:
    """`nsm.Client`."""

    def __init__(self, socket_path: str, scope: str = SCOPE) -> None:
        self.scope = scope
        self._path = socket_path
        self._client: nsm.Client | None = None

    def call(self, env: str, session: str | None, code: str, *, stream: bool) -> Reply:
        said: list[str] = []

        def hear(_stream: str, text: str) -> None:
            said.append(text)

        try:
            result = self.client().run(
                code, env=env, session=session, on_output=hear if stream else None
            )
        except NsmError as error:
            if isinstance(error, DisconnectedError):
                self.close()
            return of_error(error)
        return of_result(result, "".join(said))

    def client(self) -> nsm.Client:
        """Connected, unless that was lost meanwhile."""
        if self._client is None:
            self._client = nsm.Client(socket_path=self._path, scope=self.scope, name="soak-api")
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class AioCaller:
    """`nsm.AsyncClient`: calls of any number of threads over one connection."""

    def __init__(self, socket_path: str, scope: str = SCOPE) -> None:
        self.scope = scope
        self._path = socket_path
        self._token: trio.lowlevel.TrioToken | None = None
        self._client: nsm.AsyncClient | None = None
        self._began = threading.Event()
        self._users = 0
        self._thread = threading.Thread(target=trio.run, args=(self._serve,), name="soak-aio")

    def share(self) -> AioCaller:
        """Share the caller with one more thread, which closes it once."""
        self._users += 1
        if self._users == 1:
            self._thread.start()
            assert self._began.wait(ANSWER_S)
        return self

    def call(self, env: str, session: str | None, code: str, *, stream: bool) -> Reply:
        return trio.from_thread.run(self._call, env, session, code, stream, trio_token=self._token)

    def close(self) -> None:
        self._users -= 1
        if self._users == 0:
            trio.from_thread.run_sync(self._over.set, trio_token=self._token)
            self._thread.join()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._over = trio.Event()
        self._opening = trio.Lock()
        self._began.set()
        await self._over.wait()
        if self._client is not None:
            await self._client.aclose()

    async def _call(self, env: str, session: str | None, code: str, stream: bool) -> Reply:
        said: list[str] = []

        def hear(_stream: str, text: str) -> None:
            said.append(text)

        client = None
        try:
            client = await self._connected()
            result = await client.run(
                code, env=env, session=session, on_output=hear if stream else None
            )
        except NsmError as error:
            if isinstance(error, DisconnectedError) and client and self._client is client:
                self._client = None
                await client.aclose()
            return of_error(error)
        return of_result(result, "".join(said))

    async def _connected(self) -> nsm.AsyncClient:
        async with self._opening:
            if self._client is None:
                client = nsm.AsyncClient(socket_path=self._path, scope=self.scope, name="soak-aio")
                await client.__aenter__()
                self._client = client
            return self._client


class CommandCaller:
    """`nsm run`, a process for each call."""

    def __init__(self, directory: Path) -> None:
        self.scope = "cli:-"  # that of no project
        self._directory = directory

    def call(self, env: str, session: str | None, code: str, *, stream: bool) -> Reply:
        command = [sys.executable, "-P", "-m", "nsm.cli", "run", "-e", env, "--no-project"]
        command += ["-s", session] if session else []
        command += [] if stream else ["--json"]
        done = subprocess.run(
            command,
            input=code,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
            cwd=self._directory,
        )
        if done.returncode == 125:  # documented
            return self._refused(done.stderr)
        if not stream:
            wire = json.loads(done.stdout)
            where: dict[str, Any] = wire["session"]
            return Reply(
                kind="ran",
                text=wire["stdout"],
                created=where["created"],
                replaced=where["replaced"],
                restarted=wire["restart_reason"] if wire["interpreter_restarted"] else "",
                failed=wire["exit_code"] != 0,
            )
        return Reply(
            kind="ran",
            text=done.stdout,
            created="is new" in done.stderr,
            replaced=done.stderr if "the earlier one" in done.stderr else None,
            restarted=done.stderr if "interpreter was restarted" in done.stderr else "",
            failed=done.returncode != 0,
        )

    def _refused(self, said: str) -> Reply:
        if " ended" in said and "Session" in said:
            return Reply(kind="ended", text=said)
        known = ("unknown", "closed the connection", "no longer known", "result is gone")
        if any(words in said for words in known):
            return Reply(kind="unknown", text=said)
        return Reply(kind="refused", text=said)

    def close(self) -> None:
        """Do nothing: no connection is open between calls."""


class ShimCaller:
    """A real `nsm-mcp`, spoken to as an editor does; a new one where it was killed."""

    def __init__(
        self, directory: Path, scope: str = SCOPE, variables: Mapping[str, str] = os.environ
    ) -> None:
        self.scope = scope
        self._directory = directory
        self._variables = variables
        self._ids = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.answered: set[int] = set()

    def kill(self) -> None:
        """Kill the current shim."""
        if self._process is not None:
            self._process.kill()

    def call(self, env: str, session: str | None, code: str, *, stream: bool) -> Reply:
        del stream  # progress needs a token, and tells no text
        arguments = {"code": code, "env": env, **({"session": session} if session else {})}
        try:
            if self._process is None:
                self._begin()
            answer = self._ask("tools/call", {"name": "run", "arguments": arguments})
        except (BrokenPipeError, EOFError) as error:
            self.close()
            return Reply(kind="unknown", text=f"the shim is gone: {error}")
        if "error" in answer:
            return Reply(kind="unknown", text=json.dumps(answer["error"]))
        return of_tool(answer["result"])

    def _begin(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nsm.shim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**self._variables, "NSM_SCOPE": self.scope},
            cwd=self._directory,
        )
        client = {"name": "soak-shim", "version": "1"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        answer = self._ask("initialize", hello)
        if "error" in answer:  # no supervisor could be started; it is tried again
            raise EOFError(answer["error"]["message"])
        self._write({"method": "notifications/initialized"})

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        self._write({"id": number, "method": method, "params": params})
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            line = self._process.stdout.readline()
            if not line.endswith(b"\n"):
                raise EOFError("end of file")
            answer: dict[str, Any] = json.loads(line)
            if "method" in answer:
                continue
            assert answer["id"] not in self.answered, f"answered twice: {answer}"
            self.answered.add(answer["id"])
            assert answer["id"] == number, f"nobody waits for {answer}"
            return answer

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
            try:
                process.wait(ANSWER_S)
            finally:
                process.kill()


def of_tool(result: dict[str, Any]) -> Reply:
    """The result of a tool call."""
    text = "".join(part["text"] for part in result["content"])
    meta = result.get("_meta", {}).get("nsm")
    if meta is None:  # the shim's own words
        sure = "not run" in text
        return Reply(kind="refused" if sure else "unknown", text=text)
    if "error" in meta:
        code = meta["error"]
        kinds: dict[str, str] = {"session-ended": "ended"}
        kinds |= {error.code: "refused" for error in REFUSED}
        kinds |= dict.fromkeys(("fate-unknown", "result-lost", "disconnected"), "unknown")
        assert code in kinds, result
        return Reply(kind=kinds[code], text=f"{code}: {text}")  # type: ignore[arg-type]
    why = text if meta["interpreter_restarted"] else ""
    return Reply(
        kind="ran",
        text=text,
        created=meta["session_created"],
        replaced=text if "the earlier one" in text else None,
        restarted=why,
        failed=meta["exit_code"] != 0,
    )


class Desk:
    """Looks after sessions for all callers: who they are, and their end. For any thread."""

    def __init__(self, socket_path: str) -> None:
        self._caller = ApiCaller(socket_path, "desk")
        self._lock = threading.Lock()

    def do(self, what: Callable[[nsm.Client], T]) -> T:
        """Ask until there is an answer; only for what may be repeated."""
        with self._lock:
            for attempt in itertools.count():
                try:
                    return what(self._caller.client())
                except (DisconnectedError, NotRunningError, ShuttingDownError):
                    self._caller.close()
                    if attempt == 20:  # a supervisor does not live that shortly
                        raise
        raise AssertionError

    def pid_of(self, scope: str, name: str) -> int | None:
        """The host's number of a session's first process; None where there is none."""
        rows = self.do(lambda client: client.sessions())
        found = [row.pid for row in rows if (row.scope, row.name) == (scope, name)]
        return found[0] if found else None

    def kill(self, scope: str, name: str) -> None:
        """End a session that may have ended by itself."""
        self.do(lambda client: client.kill([f"{scope}/{name}"]))

    def close(self) -> None:
        """Close the connection."""
        self._caller.close()
