"""The agent: messages from the supervisor on one side, interpreters on the other."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys

from sandbox.capture import Capture, Spills
from sandbox.certificates import write_bundle
from sandbox.channel import Channel
from sandbox.checkpoints import Checkpoints
from sandbox.completions import Questions
from sandbox.execution import LAG_BYTES, Executor
from sandbox.fields import as_object, as_texts, is_id, is_whole
from sandbox.fork_bombs import ForkBombs
from sandbox.framing import READ_BYTES, RESUMED, encode_frame, resume_marker
from sandbox.interpreters import INTERPRETERS
from sandbox.jobs import JOB_REQUESTS, Jobs
from sandbox.limits import Limits
from sandbox.linux import (
    DEFAULT_ACTION,
    PR_SET_CHILD_SUBREAPER,
    listen_on_loopback,
    prctl,
    set_handler,
)
from sandbox.polling import Poller
from sandbox.ports import PortConnector
from sandbox.process_trees import ProcessTrees
from sandbox.processes import signal_child
from sandbox.protocol import AGENT_VERSION, CAPABILITIES, PROTOCOL
from sandbox.setups import Setups
from sandbox.stopping import Stopper
from sandbox.transfers import TRANSFER_REQUESTS, Transfers
from sandbox.watches import FileWatches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    from sandbox.execution import CurrentExecution
    from sandbox.interpreters.base import Interpreter
    from sandbox.interpreters.image_worker import ImageWorkers
    from sandbox.job import JobProcess
    from sandbox.overlay_layers import OverlayLayers


class Agent:
    """Messages from the supervisor on one side, interpreters on the other.

    It can be made before a fork: until `run` it has no descriptor, no random number and nothing
    else that belongs to one process.

    Args:
        file: path of the agent's program, for another Python to run.
        programs: interpreter name → path of the program.
        workspace: working directory of interpreters and place for spilled output.

    Attributes:
        has_forks: the session has been forked; what starts in it is kept from its forks.
        layers: overlays that undo takes back: the copies of the project and of an image.
        workers: makes workers of an image's Python; None if it cannot be forked.
    """

    pid: int
    wakeup_fd: int
    channel: Channel

    def __init__(
        self,
        file: str,
        programs: Mapping[str, str],
        workspace: str,
        limits: Limits | None = None,
    ) -> None:
        self.file = file
        self.workspace = workspace
        self.limits = limits or Limits()
        self.running: CurrentExecution | None = None
        self.has_forks = False
        self.poller = Poller()
        self.executions = Executor(self)
        self.stopper = Stopper(self)
        self.setups = Setups(self)
        self.questions = Questions(self)
        self.trees = ProcessTrees(self)
        self.fork_bombs = ForkBombs(self)
        self.checkpoints: Checkpoints | None = None
        self.layers: Sequence[OverlayLayers] = ()
        self.workers: ImageWorkers | None = None
        self._ports: PortConnector | None = None
        self._jobs: Jobs | None = None
        self._token = ""
        self._spills = Spills(workspace)
        self._transfers = Transfers(
            workspace,
            self.send,
            self.may_send,
            lambda: self.channel.passes_descriptors,
            lambda: FileWatches(self.poller, self.send, self.may_send),
        )
        self.interpreters = {
            name: INTERPRETERS[name](self, program) for name, program in programs.items()
        }
        self._ready = self._encode_ready(1)  # made here, since each fork would have to make it

    def _open(self, read_fd: int, write_fd: int) -> None:
        self.pid = os.getpid()
        self.executions.open()
        self.trees.children.open()
        # As PID 1 this process gets no signal from inside that it has no handler for, and orphans
        # come to it by themselves.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            set_handler(number, DEFAULT_ACTION)
        if self.pid != 1:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.wakeup_fd, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        set_handler(signal.SIGCHLD, wake_up)
        self.poller.watch(self.wakeup_fd, lambda _: self.reap())
        self.channel = Channel(
            self.poller, read_fd, write_fd, self._on_request, self.end, self._on_progress
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
        """Serve until the channel ends.

        Args:
            read_fd, write_fd: the channel; may be the same.
            prestart: name of the interpreter that is up before `ready` is sent.
            rehearse: if that is Python, it runs code that does nothing before `ready`.
            adopted: as for `serve`.
        """
        self._open(read_fd, write_fd)
        if adopted and prestart is not None:
            self.interpreters[prestart].adopt(*adopted)
        elif prestart is not None:
            self._prestart(self.interpreters[prestart], rehearse=rehearse)
        self.channel.send_encoded(self._ready if self.pid == 1 else self._encode_ready(self.pid))
        while True:
            self.poller.turn()

    def _prestart(self, interpreter: Interpreter, *, rehearse: bool) -> None:
        try:
            interpreter.start()
        except OSError:
            return  # the first execution will say why
        if interpreter.name == "python" and rehearse:
            self.executions.rehearse(interpreter)

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

    def end(self) -> NoReturn:
        """End the agent; as PID 1 with it everything, else what it started."""
        self._transfers.drop_all()
        if self.pid != 1:
            for owner in self.trees.owners():
                self.trees.kill(owner)
        os._exit(0)

    def new_capture(self, stream: str) -> Capture:
        return Capture(stream, self._spills, self.limits)

    def send(
        self,
        message: dict[str, Any],
        descriptor: int | None = None,
        fallback: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        if not self.executions.rehearses:
            self.channel.send(message, descriptor, fallback)

    def may_send(self) -> bool:
        """False while the supervisor lags behind with what it has been sent."""
        return self.channel.lag_bytes <= LAG_BYTES

    def _on_progress(self) -> None:
        if self.running is not None and self.running.preview is not None:
            self.running.preview.schedule()
        self._transfers.go_on()
        if self._jobs is not None:
            self._jobs.go_on()

    def fail(self, text: str, request_id: object = None) -> None:
        self.send(refusal(text, request_id))

    def send_descriptor(self, message: dict[str, Any], descriptor: int, failure: str) -> None:
        """Send an answer with a descriptor, or an error if the kernel refuses to pass it.

        Args:
            failure: what could not be done, such as "cannot listen".
        """
        why = f"{failure}: {os.strerror(errno.ETOOMANYREFS)}"
        self.channel.send(message, descriptor, lambda: refusal(why, message["id"]))

    def _on_request(self, message: Mapping[str, Any]) -> None:
        if message is RESUMED:
            self._on_resume()
            return
        kind = message.get("type")
        if kind == "execute":
            self.executions.execute(message)
        elif kind == "interrupt":
            self.executions.interrupt(message)
        elif kind == "stream":
            self.executions.stream(message)
        elif kind == "input":
            self.executions.take_input(message)
        elif kind == "ack":
            self._on_ack(message)
        elif kind == "hello":
            self._on_hello(message)
        elif kind in TRANSFER_REQUESTS:
            self._on_transfer(message)
        elif kind in JOB_REQUESTS:
            self._on_job(message)
        elif kind == "check":
            self.questions.check(message)
        elif kind == "complete":
            self.questions.complete(message)
        elif kind == "fork":
            self.questions.fork(message)
        elif kind == "ping":
            self.send({"type": "pong"})
        elif kind == "status":
            self._on_status()
        elif kind == "listen":
            self._on_listen(message)
        elif kind == "ports":
            self._ports = self._ports or PortConnector(self)
            self._ports.open(message)
        elif kind == "shutdown":
            self.end()
        else:
            self.fail(
                f"unknown type {kind!r:.50}: expected execute, interrupt, stream, input, ack, "
                "hello, ping, status, check, complete, fork, listen, ports, shutdown, "
                f"{', '.join((*TRANSFER_REQUESTS, *JOB_REQUESTS))}",
                message.get("id"),
            )

    def _on_hello(self, message: Mapping[str, Any]) -> None:
        try:
            limits = Limits(as_object(message.get("limits")))
            token = message.get("token")
            marker = resume_marker(token) if isinstance(token, str) else b""
            set_up = self.setups.read(message)
        except ValueError as error:
            self.fail(f"hello is not valid: {error}")
            return
        if marker and self._token not in {"", token}:
            self.fail("hello was said before with another token")
            return
        if marker and not self._token:
            self._token = str(token)
            self.channel.begin_sequence(marker)
        known, self.limits = self.limits.resources, limits
        for interpreter in self.interpreters.values():
            if interpreter.pid and self.running is None:
                interpreter.captures = {
                    stream: capture if capture.total_bytes else self.new_capture(stream)
                    for stream, capture in interpreter.captures.items()
                }
                # Those of its start hold already, and a filter may keep us from setting them.
                if limits.resources and limits.resources != known:
                    interpreter.limit(limits.resources)
        if set_up is not None:
            self.setups.take(*set_up)

    def _on_listen(self, message: Mapping[str, Any]) -> None:
        request_id, port = message.get("id"), message.get("port", 0)
        variables = as_texts(message.get("variables"))
        if not is_id(request_id) or not is_whole(port) or not 0 < port < 65536:
            self.fail("listen needs an id and a port", request_id)
            return
        if variables is None:
            self.fail("listen takes variables, names and values without NUL", request_id)
            return
        if not self.channel.passes_descriptors:
            self.fail("cannot listen: this channel is no socket", request_id)
            return
        certificate, bundle = message.get("certificate"), ""
        try:
            if isinstance(certificate, str):
                bundle = write_bundle(certificate)
            listener = listen_on_loopback(port)
        except OSError as error:
            self.fail(f"cannot listen: {error.strerror}", request_id)
            return
        port = listener.getsockname()[1]
        answer = {"type": "listening", "id": request_id, "port": port}
        self.send_descriptor(answer, listener.detach(), "cannot listen")
        self.setups.set_variables(
            {
                name: value.replace("{port}", str(port)).replace("{certificates}", bundle)
                for name, value in variables.items()
            }
        )

    def _on_ack(self, message: Mapping[str, Any]) -> None:
        number = message.get("seq")
        if not isinstance(number, int):
            self.fail(f"ack has seq {number!r}, expected a number")
            return
        self.channel.acknowledge(number)

    def _on_resume(self) -> None:
        if self._jobs is not None:
            self._jobs.forget_requests()
        if self.executions.input is not None:
            self.executions.input.forget_requests()
        self._transfers.end_watches()
        executions = dict.fromkeys(self.channel.kept_results, "finished")
        if (running := self.executions.running_id()) is not None:
            executions[str(running)] = "running"
        self.channel.resume(
            {
                "type": "resumed",
                "executions": executions,
                "files": self._transfers.ids,
                "notes": {
                    known: self.executions.notes[known]
                    for known in executions
                    if known in self.executions.notes
                },
                "recent": self.channel.recent,
                "count": self.executions.count,
                "checkpoints": (
                    0 if self.checkpoints is None else self.checkpoints.count(is_present=True)
                ),
                "jobs": [job.id for job in self.live_jobs()],
            }
        )

    def _on_transfer(self, message: Mapping[str, Any]) -> None:
        request_id = message.get("id")
        if self.checkpoints is not None:
            self.checkpoints.is_stale = True
        if is_id(request_id):
            self._transfers.take(request_id, message)
        else:
            self.fail(f"{message['type']} needs an id")

    def _on_job(self, message: Mapping[str, Any]) -> None:
        request_id = message.get("id")
        if not is_id(request_id):
            self.fail(f"{message['type']} needs an id")
            return
        if self._jobs is None:
            self._jobs = Jobs(self)
        if self.checkpoints is not None:
            self.checkpoints.is_stale = True
        self._jobs.take(request_id, message)

    def _on_status(self) -> None:
        count = len(self.trees.background())
        self.send({"type": "status", "running": self.executions.running_id(), "background": count})

    def reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup_fd, READ_BYTES)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                # Code has made this process its tracer (PTRACE_TRACEME), and would wait for it.
                signal_child(pid, signal.SIGKILL)
                continue
            self.trees.orphans.pop(pid, None)
            if pid in self.questions.checks:
                self.questions.on_checked(pid, status)
            if self.checkpoints is not None:
                self.checkpoints.on_exit(pid)
            self._transfers.reap(pid, status)
            if self._jobs is not None:
                self._jobs.on_exit(pid, status, usage)
            for interpreter in self.interpreters.values():
                if interpreter.pid == pid:
                    self.executions.on_death(interpreter, status)

    @property
    def helpers(self) -> set[int]:
        """Children of the agent that are nobody's: code has not started them."""
        stdin = self.executions.input
        frozen = () if self.checkpoints is None else self.checkpoints.pids
        return {
            *self.questions.checks,
            *self._transfers.processes,
            *(() if stdin is None else (stdin.pid,)),
            *frozen,
        }

    def keep_checkpoints(self) -> Checkpoints | None:
        """The checkpoints of the session; None where there is no undo."""
        if self.checkpoints is None and self.limits.undo:
            self.checkpoints = Checkpoints(self)
        return self.checkpoints

    def live_interpreters(self) -> list[Interpreter]:
        return [i for i in self.interpreters.values() if i.pid]

    @property
    def has_jobs(self) -> bool:
        """True if there has been a job."""
        return self._jobs is not None

    def live_jobs(self) -> list[JobProcess]:
        return [] if self._jobs is None else self._jobs.live


def refusal(text: str, request_id: object = None) -> dict[str, Any]:
    """Make the answer to a request that cannot be done."""
    about = {"id": request_id} if isinstance(request_id, (str, int)) else {}
    return {"type": "error", "message": text, **about}


def wake_up(_number: int, _frame: object) -> None:
    """Handle SIGCHLD: the write to the wake-up descriptor is all that it takes."""
