"""Targets that cases run against: an agent's protocol, a control socket, the MCP tool.

A target opens sessions. A session of `control` and `mcp` is a jail, one of `agent` is a process
with a directory, so what would harm a host runs only where the case's need of a jail is met.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import nsm
from agent_process import AGENT, PYTHON
from conformance.cases import LANGUAGES, Case, Language, Step
from conformance.judge import Answer
from sandbox.framing import FrameError, MessageReader, encode_frame

GRACE_S = 2.0
"""Time between an interrupt and the kill, in every target."""

PATIENCE_S = 30.0
"""On top of a step's own limit and the grace: beyond it an answer is taken to be lost."""

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""PATH of agents, so that an answer does not depend on the runner's PATH."""


class LostAnswerError(Exception):
    """No answer came in time, or one that is no answer."""


class Session(Protocol):
    """Runs steps one after another and keeps state."""

    def run(self, step: Step, language: Language) -> Answer:
        """
        Raises:
            LostAnswerError: as above.
        """
        ...


class Target(Protocol):
    """Opens sessions."""

    def lacks(self, case: Case) -> str:
        """Explain why the case cannot apply here; empty if it does."""
        ...

    def session(self, case: Case) -> contextlib.AbstractContextManager[Session]:
        """A fresh session for a case, gone at the end."""
        ...


def is_plain(step: Step) -> bool:
    """Return whether a step needs no more than the `execute` and `result` of every agent."""
    return not (step.displays or step.truncated or step.timed_out is True or step.restarted is True)


# ----------------------------------------------------------------------------------------- agent


class AgentTarget:
    """Any program that speaks the agent protocol on its standard input and output.

    What it does not list as a capability is neither used nor judged.

    Args:
        command: starts it; ``{workspace}`` in an argument becomes the session's directory, which
            is its working directory in any case.
        variables: on top of PATH, HOME and LANG.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._variables = dict(variables or {})
        with self._agent() as agent:
            self.ready = agent.ready
        self.capabilities = set(cast("list[str]", self.ready.get("capabilities") or []))
        self._interpreters = set(cast("list[str]", self.ready.get("interpreters") or LANGUAGES))

    def lacks(self, case: Case) -> str:
        if "jail" in case.needs:
            return "would harm the host without a jail"
        if "control" in case.needs:
            return "is about the supervisor"
        for step in case.steps:
            language = step.language or case.language
            if language not in self._interpreters:
                return f"has no {language}"
            wanted: set[str] = set()
            if not is_plain(step):
                wanted.add("execute.result")
            if step.timed_out is True:
                wanted.add("execute.timeout")
            if step.interrupt_after is not None:
                wanted |= {"interrupt", "stream"}
            if step.reply_bytes is not None:
                wanted |= {"limits", "execute.result"}
            if wanted - self.capabilities:
                return f"has no capability {', '.join(sorted(wanted - self.capabilities))}"
        return ""

    @contextmanager
    def session(self, case: Case) -> Generator[Session]:
        with self._agent() as agent:
            yield _AgentSession(agent, self.capabilities)

    @contextmanager
    def _agent(self) -> Generator[_AgentChannel]:
        with tempfile.TemporaryDirectory(prefix="nsm-c-", ignore_cleanup_errors=True) as directory:
            os.chmod(directory, 0o755)
            command = [part.replace("{workspace}", directory) for part in self._command]
            agent = _AgentChannel(command, directory, self._variables)
            try:
                agent.introduce()
                yield agent
            finally:
                agent.close()


class _AgentChannel:
    """An agent and its channel."""

    def __init__(self, command: Sequence[str], directory: str, more: Mapping[str, str]) -> None:
        self.ready: dict[str, Any] = {}
        self._socket, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the agent
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._log.fileno(),
                    cwd=directory,
                    env={"PATH": SYSTEM_PATH, "HOME": directory, "LANG": "C.UTF-8", **more},
                )
        except OSError:
            self._socket.close()
            self._log.close()
            raise
        self._reader = MessageReader()

    def introduce(self) -> None:
        self.ready = self.receive(time.monotonic() + PATIENCE_S)
        if self.ready.get("type") != "ready":
            raise LostAnswerError(f"the agent's first frame is {self.ready}, expected ready")

    def send(self, **frame: Any) -> None:
        self._socket.settimeout(PATIENCE_S)
        try:
            self._socket.sendall(encode_frame(frame))
        except OSError as error:
            raise LostAnswerError(f"the agent takes no frame: {error}; {self._said()}") from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next frame, until a moment of the monotonic clock."""
        while True:
            try:
                frame = self._reader.next_message()
            except FrameError as error:
                raise LostAnswerError(f"the agent sent what is not a frame: {error}") from None
            if frame is not None:
                return frame
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._socket.recv(1 << 20)
            except TimeoutError:
                raise LostAnswerError(f"no answer in time; {self._said()}") from None
            except ConnectionError:
                data = b""
            if not data:
                raise LostAnswerError(f"the agent ended; {self._said()}")
            self._reader.receive_data(data)

    def close(self) -> None:
        self._socket.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _said(self) -> str:
        self._log.seek(0)
        return f"its log: {self._log.read()[-2000:].decode(errors='replace')!r}"


class _AgentSession:
    def __init__(self, agent: _AgentChannel, capabilities: set[str]) -> None:
        self._agent = agent
        self._capabilities = capabilities
        self._executions = 0

    def run(self, step: Step, language: Language) -> Answer:
        self._executions += 1
        request_id = f"e{self._executions}"
        options: dict[str, Any] = {}
        if "execute.timeout" in self._capabilities:
            options |= {"timeout_s": step.timeout_s, "grace_s": GRACE_S}
        if step.reply_bytes is not None:
            options["reply_bytes"] = step.reply_bytes
        if step.interrupt_after is not None:
            options["stream"] = True
        try:
            self._agent.send(
                type="execute", id=request_id, interpreter=language, code=step.code, **options
            )
        except FrameError as error:
            return Answer(refused=str(error))
        return self._answer(step, request_id)

    def _answer(self, step: Step, request_id: str) -> Answer:
        deadline = time.monotonic() + step.timeout_s + GRACE_S + PATIENCE_S
        seen, waits_for = "", step.interrupt_after
        while True:
            frame = self._agent.receive(deadline)
            kind = frame.get("type")
            if kind == "output":
                seen += str(frame.get("text"))
                if waits_for is not None and waits_for in seen:
                    waits_for = None
                    self._agent.send(type="interrupt", id=request_id)
            elif kind == "error" and frame.get("id") in {request_id, None}:
                return Answer(refused=str(frame.get("message") or "without a reason"))
            elif kind == "result":
                if frame.get("id") != request_id:
                    raise LostAnswerError(f"the answer is that of {frame.get('id')!r}")
                return self._judged(frame)

    def _judged(self, frame: Mapping[str, Any]) -> Answer:
        """Judge only what an agent claims to report: a claimed but missing field is no answer."""
        told: tuple[str, ...] = ("stdout", "stderr", "exit_code")
        told += TOLD if "execute.result" in self._capabilities else ()
        missing = [field for field in told if frame.get(field) is None]
        if missing:
            raise LostAnswerError(f"the result has no {', '.join(missing)}")
        return _from_frame(frame)


TOLD = ("displays", "truncated", "timed_out", "interrupted", "interpreter_restarted")
"""Fields of a result that `execute.result` promises, as far as they are judged."""


def _from_frame(frame: Mapping[str, Any]) -> Answer:
    truncated = cast("Mapping[str, Mapping[str, Any]] | None", frame.get("truncated"))
    return Answer(
        stdout=_as_clients_see(frame["stdout"]),
        stderr=_as_clients_see(frame["stderr"]),
        exit_code=frame["exit_code"],
        displays=frame.get("displays"),
        truncated=None if truncated is None else {k: v["file"] for k, v in truncated.items()},
        timed_out=frame.get("timed_out"),
        interrupted=frame.get("interrupted"),
        restarted=frame.get("interpreter_restarted"),
        reason=frame.get("restart_reason", ""),
    )


def _as_clients_see(text: str) -> str:
    """`text` with U+FFFD in place of lone surrogates, which stand for bytes that are not UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# --------------------------------------------------------------------------------- control socket


class ControlTarget:
    """A supervisor's control socket, by way of `nsm.Client`.

    Args:
        socket_path: of the supervisor.
        environments: interpreter → environment.
    """

    def __init__(self, socket_path: str, environments: Mapping[Language, str]) -> None:
        self._socket_path = socket_path
        self._environments = dict(environments)
        with self.client("test") as client:
            self._available = {row.name for row in client.envs() if row.available}

    def client(self, scope: str) -> nsm.Client:
        return nsm.Client(socket_path=self._socket_path, scope=scope, autostart=False)

    def environment(self, language: Language) -> str:
        return self._environments.get(language, language)

    def lacks(self, case: Case) -> str:
        if any(step.language not in {None, case.language} for step in case.steps):
            return "has one interpreter in each session"
        if any(step.reply_bytes is not None for step in case.steps):
            return "chooses the size of answers itself"
        if (env := self.environment(case.language)) not in self._available:
            return f"has no environment {env}"
        return ""

    @contextmanager
    def session(self, case: Case) -> Generator[Session]:
        name = f"c-{secrets.token_hex(8)}"
        with self.client("conformance") as client:
            try:
                yield _ControlSession(self, client, self.environment(case.language), name)
            finally:
                client.kill([name])


class _ControlSession:
    def __init__(self, target: ControlTarget, client: nsm.Client, env: str, name: str) -> None:
        self._target = target
        self._client = client
        self._env = env
        self._name = name

    def run(self, step: Step, language: Language) -> Answer:
        on_output = None
        if step.interrupt_after is not None:
            on_output = interrupter(self._target, self._name, step.interrupt_after)
        try:
            result = self._client.run(
                step.code,
                env=self._env,
                session=self._name,
                timeout_s=step.timeout_s,
                on_output=on_output,
            )
        except nsm.NsmError as error:
            return _from_error(error.code, str(error))
        return Answer(
            stdout=result.stdout,
            stderr=result.stderr,
            exit_code=result.exit_code,
            displays=result.displays,
            truncated={stream: what.file for stream, what in result.truncated.items()},
            timed_out=result.timed_out,
            interrupted=result.interrupted,
            restarted=result.interpreter_restarted,
            reason=result.restart_reason,
        )


def interrupter(target: ControlTarget, session: str, text: str) -> Callable[[str, str], None]:
    """Take output, and interrupt the session once the text has come."""
    seen = ""
    waiting = True

    def take(_stream: str, piece: str) -> None:
        nonlocal seen, waiting
        seen += piece
        if waiting and text in seen:
            waiting = False
            with target.client("conformance") as client:
                client.interrupt(session)

    return take


def _ignore(_stream: str, _text: str) -> None:
    """Take output that nobody waits for."""


def _from_error(code: str, message: str) -> Answer:
    if code == "session-ended":
        return Answer(ended=message)
    if code in {"disconnected", "internal", "not-running"}:
        raise LostAnswerError(f"{code}: {message}")
    return Answer(refused=message)


# ------------------------------------------------------------------------------------------- MCP


class McpTarget:
    """The tool `run`, through real `nsm-mcp` programs: what a model sees.

    Args:
        control: the same supervisor, which is asked to interrupt.
        variables: lead `nsm-mcp` to it.
    """

    def __init__(self, control: ControlTarget, variables: Mapping[str, str]) -> None:
        self._control = control
        self._variables = dict(variables)

    def lacks(self, case: Case) -> str:
        if any(step.truncated for step in case.steps):
            return "truncates elsewhere"
        return self._control.lacks(case)

    @contextmanager
    def session(self, case: Case) -> Generator[Session]:
        name = f"m-{secrets.token_hex(8)}"
        shim = _Shim(self._variables | {"NSM_SCOPE": "conformance"})
        try:
            shim.initialize()
            yield _McpSession(self._control, shim, self._control.environment(case.language), name)
        finally:
            shim.close()
            with self._control.client("conformance") as client:
                client.kill([f"conformance/{name}", name])


class _Shim:
    """A running `nsm-mcp` and its JSON lines."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nsm.shim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **variables},
            cwd="/",
        )
        self._requests = 0
        self._buffer = b""

    def initialize(self) -> None:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "conformance", "version": "1"},
        }
        self.request("initialize", params, PATIENCE_S, _ignore)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def request(
        self,
        method: str,
        params: Mapping[str, Any],
        limit_s: float,
        on_output: Callable[[str, str], None],
    ) -> dict[str, Any]:
        """The answer to a request, as JSON-RPC has it."""
        self._requests += 1
        number = self._requests
        self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        deadline = time.monotonic() + limit_s
        while True:
            message = self._read(deadline)
            if message.get("method") == "notifications/progress":
                on_output("stdout", str(message["params"].get("message", "")))
            elif "method" not in message:
                if message.get("id") != number:
                    raise LostAnswerError(f"the answer is that of {message.get('id')!r}")
                return message

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise LostAnswerError(f"nsm-mcp takes no message: {error}") from None

    def _read(self, deadline: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise LostAnswerError("no answer in time")
            data = os.read(fd, 1 << 20)
            if not data:
                raise LostAnswerError("nsm-mcp ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


class _McpSession:
    def __init__(self, control: ControlTarget, shim: _Shim, env: str, name: str) -> None:
        self._control = control
        self._shim = shim
        self._env = env
        self._name = name

    def run(self, step: Step, language: Language) -> Answer:
        arguments = {
            "code": step.code,
            "env": self._env,
            "session": self._name,
            "timeout_seconds": step.timeout_s,
        }
        params: dict[str, Any] = {"name": "run", "arguments": arguments}
        take: Callable[[str, str], None] = _ignore
        if step.interrupt_after is not None:
            params["_meta"] = {"progressToken": 1}
            take = interrupter(self._control, self._name, step.interrupt_after)
        message = self._shim.request(
            "tools/call", params, step.timeout_s + GRACE_S + PATIENCE_S, take
        )
        if "result" not in message:
            return Answer(refused=str(message.get("error")))
        result = message["result"]
        text = "".join(part.get("text", "") for part in result["content"])
        meta = cast("dict[str, Any]", result.get("_meta", {}).get("nsm", {}))
        if "error" in meta:
            return _from_error(meta["error"], text)
        stdout, stderr = parts_of(text)
        return Answer(
            stdout=stdout,
            stderr=stderr,
            text=text,
            cut=frozenset(("stdout", "stderr") if meta["omitted_chars"] else meta["omitted_bytes"]),
            exit_code=meta["exit_code"],
            timed_out=meta["timed_out"],
            interrupted=meta["interrupted"],
            restarted=meta["interpreter_restarted"],
            reason=text if meta["interpreter_restarted"] else "",
        )


NOTES = re.compile(
    r"((^|\n)\[(session|timed out|interrupted|exit code|interpreter restarted|waited"
    r"|timeout_seconds|(stdout|stderr|output) truncated)[^\n]*\])+\Z"
)


def parts_of(text: str) -> tuple[str, str]:
    """Stdout and stderr in a text that a model reads; displays are taken for the end of either."""
    body = NOTES.sub("", text)
    if body != text and body:
        body += "\n"  # which was before the first note
    body = body.removeprefix("(no output)\n")
    stdout, heading, stderr = body.partition("--- stderr ---\n")
    return stdout, stderr if heading else ""


# ---------------------------------------------------------------------------------------- making


OTHER_AGENT = "NSM_TEST_AGENT"
"""Variable with the command of another agent; {workspace} in it becomes the directory."""


def chosen_agent() -> AgentTarget:
    """This project's agent, or the one that the variable names."""
    if other := os.environ.get(OTHER_AGENT):
        return AgentTarget(shlex.split(other))
    command = [PYTHON, "-I", str(AGENT), "--workspace", "{workspace}"]
    if (node := shutil.which("node")) is not None:
        command += ["--node", node]
    # A Python that is not installed for the system may need its libraries named.
    kept = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    return AgentTarget(command, kept)
