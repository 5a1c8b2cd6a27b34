"""The agent: messages from the supervisor on one side, interpreters on the other."""

from __future__ import annotations

import os
import signal
import sys

from sandbox.certificates import write_bundle
from sandbox.completions import Questions
from sandbox.execution import Executor
from sandbox.framing import (
    AGENT_VERSION,
    CAPABILITIES,
    PROTOCOL,
    RESUMED,
    RequestError,
    as_object,
    as_texts,
    encode_frame,
    is_id,
    resume_marker,
    whole_field,
)
from sandbox.jobs import JOB_REQUESTS, Jobs
from sandbox.limits import Limits
from sandbox.linux import DEFAULT_ACTION, listen_on_loopback, set_handler
from sandbox.names import NamedHosts
from sandbox.ports import PortConnector
from sandbox.processes import ProcessTrees
from sandbox.runners import Runners, RunnerSession
from sandbox.session import Channel, SharedSession
from sandbox.transfers import TRANSFER_REQUESTS, Transfers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn


WITHOUT_ID = {
    "ack",
    "hello",
    "hosts",
    "interrupt",
    "ping",
    "runner_end",
    "shutdown",
    "status",
    "stream",
}
"""Types of messages that need no id."""


class Agent:
    """Messages from the supervisor on one side, interpreters on the other.

    It can be made before a fork: until `run` it has no descriptor, no random number and nothing
    else that belongs to one process.
    """

    def __init__(self, session: SharedSession, programs: Mapping[str, str]) -> None:
        self.session = session
        self._trees = trees = ProcessTrees(session)
        self._executions = Executor(session, trees, programs)
        self.interpreters = self._executions.interpreters
        questions = Questions(session, self.interpreters)
        self._ports: PortConnector | None = None
        self._names: NamedHosts | None = None
        self._jobs: Jobs | None = None
        self._runners: Runners | None = None
        self._transfers: Transfers | None = None
        self._token = ""
        self._handlers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "execute": self._executions.execute,
            "interrupt": self._executions.interrupt,
            "stream": self._executions.stream,
            "input": self._executions.take_input,
            "ack": self._on_ack,
            "hello": self._on_hello,
            "ping": lambda _: session.send({"type": "pong"}),
            "status": lambda _: self._on_status(),
            "check": questions.check,
            "complete": questions.complete,
            "fork": questions.fork,
            "fork-failed": questions.fork_failed,
            "listen": self._on_listen,
            "names": self._on_names,
            "hosts": self._on_hosts,
            "ports": self._on_ports,
            "runner": self._on_runner,
            "runner_end": self._on_runner,
            "shutdown": lambda _: self._end(),
            **dict.fromkeys(TRANSFER_REQUESTS, self._on_transfer),
            **dict.fromkeys(JOB_REQUESTS, self._on_job),
        }
        self._ready = self._encode_ready(1)  # made here, since each fork would have to make it

    def _open(self, read_fd: int, write_fd: int) -> None:
        self.session.pid = os.getpid()
        self._executions.open()
        # As PID 1 this process gets no signal from inside that it has no handler for.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            set_handler(number, DEFAULT_ACTION)
        self._trees.open()
        self.session.channel = Channel(
            self.session.poller, read_fd, write_fd, self._on_request, self._end, self._on_progress
        )

    def run(
        self,
        read_fd: int,
        write_fd: int,
        prestart: str | None = None,
        *,
        rehearse: bool = True,
        adopted: Sequence[int] = (),
    ) -> NoReturn:
        """Serve until the channel ends; arguments as of `sandbox_agent.serve`."""
        self._open(read_fd, write_fd)
        if prestart is not None:
            self._executions.prestart(prestart, adopted, rehearse=rehearse)
        session = self.session
        session.channel.send_encoded(
            self._ready if session.pid == 1 else self._encode_ready(session.pid)
        )
        while True:
            session.poller.turn()

    def inherit(self, agent: Agent) -> None:
        """Have interpreters start as those of another agent, of which this process is a fork."""
        for name, each in self.interpreters.items():
            each.start_like(agent.interpreters[name])

    def _encode_ready(self, pid: int) -> bytes:
        return encode_frame(
            {
                "type": "ready",
                "protocol": PROTOCOL,
                "agent": AGENT_VERSION,
                "python": ".".join(map(str, sys.version_info[:3])),
                "pid": pid,
                "interpreters": sorted(self.interpreters),
                "capabilities": list(CAPABILITIES),
            }
        )

    def _end(self) -> NoReturn:
        """End the agent; as PID 1 with it everything, else what it started."""
        if self._transfers is not None:
            self._transfers.drop_all()
        if self.session.pid != 1:
            for owner in self._trees.owners():
                self._trees.kill(owner)
        if isinstance(self.session, RunnerSession):
            self.session.leave()
        os._exit(0)

    def _on_progress(self) -> None:
        self._executions.go_on_with_output()
        if self._transfers is not None:
            self._transfers.go_on()
        if self._jobs is not None:
            self._jobs.go_on()

    def _on_request(self, message: Mapping[str, Any]) -> None:
        if message is RESUMED:
            self._on_resume()
            return
        try:
            self._handle(message)
        except RequestError as error:
            self.session.fail(str(error), message.get("id"))

    def _handle(self, message: Mapping[str, Any]) -> None:
        """Raise RequestError if that cannot be done."""
        kind = message.get("type")
        handle = self._handlers.get(kind) if isinstance(kind, str) else None
        if handle is None:
            expected = ", ".join(self._handlers)
            raise RequestError(f"unknown type {kind!r:.50}: expected {expected}")
        if kind not in WITHOUT_ID and not is_id(message.get("id")):
            raise RequestError(f"{kind} needs an id")
        handle(message)

    def _on_hello(self, message: Mapping[str, Any]) -> None:
        try:
            limits = Limits(as_object(message.get("limits")))
            token = message.get("token")
            marker = resume_marker(token) if isinstance(token, str) else b""
            set_up = self._executions.read_setup(message)
        except ValueError as error:
            raise RequestError(f"hello is not valid: {error}") from None
        if marker and self._token not in {"", token}:
            raise RequestError("hello was said before with another token")
        if marker and not self._token:
            self._token = str(token)
            self.session.channel.begin_sequence(marker)
        self._executions.limit(limits)
        if set_up is not None:
            self._executions.take_setup(*set_up)

    def _on_listen(self, message: Mapping[str, Any]) -> None:
        port = whole_field(message, "port", 0, low=1, high=65535)
        variables = as_texts(message.get("variables"))
        if variables is None:
            raise RequestError("variables must have names, and values without NUL")
        if not self.session.channel.passes_descriptors:
            raise RequestError("cannot listen: this channel is not a socket")
        certificate, bundle = message.get("certificate"), ""
        try:
            if isinstance(certificate, str):
                bundle = write_bundle(certificate)
            listener = listen_on_loopback(port)
        except OSError as error:
            raise RequestError(f"cannot listen: {error.strerror}") from None
        port = listener.getsockname()[1]
        answer = {"type": "listening", "id": message["id"], "port": port}
        self.session.send_descriptor(answer, listener.detach(), "cannot listen")
        self._executions.set_variables(
            {
                name: value.replace("{port}", str(port)).replace("{certificates}", bundle)
                for name, value in variables.items()
            }
        )

    def _on_names(self, message: Mapping[str, Any]) -> None:
        if not self.session.channel.passes_descriptors:
            raise RequestError("names needs a channel that is a socket")
        self._names = self._names or NamedHosts(self.session)
        self._names.open(message)

    def _on_hosts(self, message: Mapping[str, Any]) -> None:
        if self._names is not None:
            self._names.change(message)

    def _on_ports(self, message: Mapping[str, Any]) -> None:
        self._ports = self._ports or PortConnector(self.session)
        self._ports.open(message)

    def _on_runner(self, message: Mapping[str, Any]) -> None:
        if self._runners is None:
            self._runners = Runners(self.session, self._trees, self.interpreters)
        if message["type"] == "runner":
            self._runners.start(message)
        else:
            self._runners.end(message)

    def _on_ack(self, message: Mapping[str, Any]) -> None:
        self.session.channel.acknowledge(whole_field(message, "seq", 0))

    def _on_resume(self) -> None:
        if self._jobs is not None:
            self._jobs.forget_requests()
        if self._executions.input is not None:
            self._executions.input.forget_requests()
        if self._transfers is not None:
            self._transfers.end_watches()
        checkpoints = self._executions.checkpoints
        executions = dict.fromkeys(self.session.channel.kept_results, "finished")
        if (running := self._executions.running_id()) is not None:
            executions[str(running)] = "running"
        self.session.channel.resume(
            {
                "type": "resumed",
                "executions": executions,
                "files": [] if self._transfers is None else self._transfers.ids,
                "notes": {
                    known: self._executions.notes[known]
                    for known in executions
                    if known in self._executions.notes
                },
                "recent": self.session.channel.recent,
                "count": self._executions.count,
                "checkpoints": 0 if checkpoints is None else checkpoints.count(is_present=True),
                "jobs": [] if self._jobs is None else self._jobs.live,
            }
        )

    def _on_transfer(self, message: Mapping[str, Any]) -> None:
        if self._transfers is None:
            self._transfers = Transfers(self.session, self._trees)
        if self._executions.checkpoints is not None:
            self._executions.checkpoints.is_stale = True
        self._transfers.take(message["id"], message)

    def _on_job(self, message: Mapping[str, Any]) -> None:
        if self._jobs is None:
            self._jobs = Jobs(self.session, self._trees, self.interpreters)
        if self._executions.checkpoints is not None:
            self._executions.checkpoints.is_stale = True
        self._jobs.take(message["id"], message)

    def _on_status(self) -> None:
        count = len(self._trees.background())
        self.session.send(
            {"type": "status", "running": self._executions.running_id(), "background": count}
        )
