"""Interpreters whose control socket carries frames: Python and Node.

Python is a fork of the agent, of an image's Python, or another program that runs the agent's
worker. Node runs a program of ours.
"""

from __future__ import annotations

import _socket
import json
import os
import signal
import struct
import sys
import time

from sandbox.capture import DISPLAY_BYTES, OutputPipe
from sandbox.framing import FrameError, MessageReader, encode_frame, from_json, to_json
from sandbox.interpreters.base import ForkedWorker, Interpreter
from sandbox.linux import restore_signals
from sandbox.processes import ignores_interrupts, signal_child
from sandbox.shared_page import INTERRUPT, SharedPage
from sandbox.workers import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    from sandbox.framing import Step
    from sandbox.interpreters.fork_server import ForkServer
    from sandbox.processes import ProcessTrees
    from sandbox.session import SharedSession


ANSWER_S = 10
"""Time for the keeper to answer, which takes some milliseconds."""

NAMED = ("mnt", "ipc", "uts", "net", "cgroup", "pid", "user")
"""Namespaces of the session, in the order in which they are entered."""

READING = os.O_RDONLY | os.O_CLOEXEC


class ImageWorkers:
    """Makes workers of the image's Python, by asking the process that keeps it.

    Args:
        requests: descriptor of its socket.
        group: descriptor of the control group's `cgroup.procs`; negative without.
        variables: environment of the Python that is kept.
        once: only the first worker is a fork: code may change the image's files.
    """

    def __init__(self, requests: int, group: int, variables: Mapping[str, str], once: bool) -> None:
        self._once = once
        self._requests = requests
        self._group = group
        self._variables = variables

    def changed_variables(self) -> Mapping[str, str]:
        """Variables of the session that the new worker does not have."""
        known = self._variables
        return {name: value for name, value in os.environ.items() if known.get(name) != value}

    def fork(self, given: Sequence[int], limits: Mapping[str, int]) -> int:
        """Have a worker made; returns its process id, or 0 if it is to be started instead. It is
        given its ends of its output pipes and its control socket, and its page."""
        if self._requests < 0:
            return 0
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        opened: list[int] = []
        try:
            opened.extend(os.open(f"/proc/self/ns/{kind}", READING) for kind in NAMED)
            fds = [theirs.fileno(), *opened, *given]
            if self._group >= 0:
                fds.append(self._group)
            rights = struct.pack(f"{len(fds)}i", *fds)
            requests = _socket.socket(fileno=self._requests)
            try:
                control = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)
                requests.sendmsg([to_json({"limits": dict(limits)}).encode()], [control])
            finally:
                requests.detach()
            theirs.close()
            ours.settimeout(ANSWER_S)
            pid = from_json(ours.recv(4096).decode()).get("pid", 0)
            return pid if isinstance(pid, int) else 0
        except (OSError, ValueError):
            return 0
        finally:
            for fd in opened:
                os.close(fd)
            ours.close()
            theirs.close()
            if self._once:
                os.close(self._requests)
                self._requests = -1


WORKER_FRAME_BYTES = 4 * DISPLAY_BYTES
"""Largest frame taken from an interpreter, which may be under the control of hostile code."""


class FramedInterpreter(Interpreter):
    """One whose control socket carries frames, as opposed to lines."""

    def __init__(self, session: SharedSession, trees: ProcessTrees, program: str) -> None:
        super().__init__(session, trees, program)
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
                self.on_done(self, message.get("id"), message.get("exit_code"))
            elif kind == "answer":
                self.on_answer(message)

    def on_answer(self, message: Mapping[str, Any]) -> None:
        """Take an answer; one to a question that was given up frees the place for another."""
        question = self.question
        if question is not None and question[0] == message.get("id"):
            self.question = None
            question[1](message)


class PythonInterpreter(FramedInterpreter):
    """A fork of the agent when the agent's own Python is to be used, else another program, or one
    of the `workers` of an image's Python that can be forked."""

    name = "python"
    answers = ("complete", "fork")

    def __init__(self, session: SharedSession, trees: ProcessTrees, program: str) -> None:
        super().__init__(session, trees, program)
        self.workers: ImageWorkers | None = None
        self.fork_server: ForkServer | None = None
        self._page_fd = -1
        self._page: SharedPage | None = None
        self._number = 0
        self._awaits_start = False
        self._is_preloaded = False

    @property
    def takes_signals(self) -> bool:
        return self._page is not None and self._page.interruptible == self._number

    def kept_fds(self) -> tuple[int, ...]:
        return (self._page_fd,)

    def start(self) -> None:
        if self.fork_server is not None:
            self._page = self.fork_server.page
            self._page.clear()
            super().start()
            return
        self._page_fd = SharedPage.make_file()
        try:
            self._page = SharedPage(self._page_fd)
            super().start()
        finally:
            os.close(self._page_fd)

    def spawn(self, control_fd: int, pipes: Mapping[str, OutputPipe]) -> int:
        workers, server = self.workers, self.fork_server
        if server is not None:
            given = [*(pipe.child_fd for pipe in pipes.values()), control_fd]
            if pid := server.fork(given, self.session.workspace):
                return pid
        if workers is not None and not self.session.has_forks:
            outputs = [pipes[stream].child_fd for stream in ("stdout", "stderr")]
            given = [*outputs, control_fd, self._page_fd]
            pid = workers.fork(given, self.session.limits.resources)
            self._is_preloaded = pid > 0
            if pid:
                if changed := workers.changed_variables():
                    self.send({"type": "variables", "variables": dict(changed)})
                return pid
        self._is_preloaded = False
        return super().spawn(control_fd, pipes)

    def needed(self, steps: list[Step]) -> list[Step]:
        return [step for step in steps if not (step.preloads and self._is_preloaded)]

    def adopt(self, pid: int, *fds: int) -> None:
        self._page = SharedPage(fds[1])
        super().adopt(pid, *fds)
        os.close(fds[1])
        self.begin()

    def become_program(self, control_fd: int) -> NoReturn:
        if self.program == sys.executable and self._page is not None:
            raise ForkedWorker(control_fd, self._page)
        agent_file = self.session.file
        for fd in (control_fd, self._page_fd):
            os.set_inheritable(fd, True)
        os.execv(
            self.program,
            [self.program, "-I", agent_file, "--worker", str(control_fd), str(self._page_fd)],
        )

    def send_code(self, number: int, code: str, *, one_shot: bool = False, stdin: str = "") -> None:
        self._number = number
        self._awaits_start = True
        super().send_code(number, code, one_shot=one_shot, stdin=stdin)

    def freeze(self, fd: int) -> None:
        """Have the worker make a checkpoint, whose end of a socket is the worker's from now on."""
        if self.link is not None:
            self.link.send(encode_frame({"type": "checkpoint"}), fd)

    def thaw(self, pid: int, number: int, wake: Callable[[str, list[int]], None]) -> None:
        """Have a checkpoint be the worker, which answers as if it had run code. `wake` sends it a
        message and descriptors."""
        page_fd = SharedPage.make_file()
        ends = [page_fd]
        try:
            self._page = SharedPage(page_fd)
            pipes, theirs = self.make_ends()
            ends.append(theirs)
            self.steps = []
            self.pid = pid
            self.begin()
            self._number = number
            self._token = os.urandom(16).hex()
            order = to_json({"id": number, "token": self._token})
            wake(order, [theirs, pipes["stdout"].child_fd, pipes["stderr"].child_fd, page_fd])
        finally:
            for fd in ends:
                os.close(fd)

    def variables_code(self, variables: Mapping[str, str]) -> str:
        return f"__import__('os').environ.update({dict(variables)!r})"

    def on_started(self) -> None:
        if self._awaits_start:  # else code says so, which may say it thousands of times
            self._awaits_start = False
            self.on_interruptible(self)

    def send_interrupt(self, number: int) -> None:
        if self._page is not None:
            # Before looking whether it takes signals, as the worker does it the other way round:
            # so at least one side sees what the other wrote.
            self._page.awaited = number
            self._awaits_start = self._awaits_start and not self.takes_signals
        # system(3) ignores SIGINT while its command runs, and the code would go on behind it.
        if self.takes_signals and ignores_interrupts(self.pid):
            self.send({"type": "interrupt"})
            signal_child(self.pid, INTERRUPT)

    def interrupt_again(self) -> None:
        # The event loop has not gone on since: another task than that of the code seems to compute.
        if self._page is not None and self._page.pending_interrupt == self._number:
            signal_child(self.pid, signal.SIGINT)

    def limit(self, limits: Mapping[str, int]) -> None:
        self.send({"type": "limits", "limits": dict(limits)})


RUNNER = (
    text_of("node/globals.js"),
    text_of("node/questions.js"),
    text_of("node/rewriting.js"),
    text_of("node/types.js"),
    text_of("node/writer.js"),
    text_of("node/listener.js"),
    text_of("node/inspector.js"),
    text_of("node/output.js"),
    text_of("node/input.js"),
    text_of("node/modules.js"),
    text_of("node/signals.js"),
    text_of("node/errors.js"),
    text_of("node/values.js"),
    text_of("node/execution.js"),
    text_of("node/completion.js"),
    text_of("node/main.js"),
)
"""The program that Node runs, in one scope: each part may use the ones before it at once."""


def node_program() -> str:
    """Put the parts of the runner together, so that nothing of them is global."""
    return "'use strict';\n(() => {\n" + "\n".join(RUNNER) + "})();\n"


CONTROL_END_S = 1.0
"""Time limit for Node's process to end after its control socket; normally it ends at once."""


class NodeInterpreter(FramedInterpreter):
    """Node with `RUNNER`. It can't put descriptors back, so 1 and 2 must stay in place.

    Flags of V8, a start-up snapshot and a compile cache make no start faster: flags change the hash
    by which V8 knows its own code cache, the others cost memory or a file in each jail.
    """

    name = "node"
    CONTROL_FD = 3
    # Code that is interrupted in a timer or immediate leaves Node's book-keeping of asynchronous
    # contexts a level too deep; with the checks on, Node would abort over that.
    OPTIONS = ("--no-force-async-hooks-checks",)
    answers = ("check", "complete")
    reads_variables_at_start = True  # NODE_USE_ENV_PROXY, for one

    def become_program(self, control_fd: int) -> NoReturn:
        restore_signals()
        # Node marks what it inherits as close-on-exec, as far as descriptors are contiguous.
        os.dup2(control_fd, self.CONTROL_FD)
        os.execv(self.program, [self.program, *self.OPTIONS, "-e", node_program()])

    def on_begun(self) -> None:
        self.expect_private({1: self.pipes["stdout"].identity, 2: self.pipes["stderr"].identity})

    def variables_code(self, variables: Mapping[str, str]) -> str:
        return f"void Object.assign(process.env, {json.dumps(dict(variables))})"

    def send_interrupt(self, number: int) -> None:
        self.send({"type": "interrupt", "id": number})

    def on_control_end(self) -> None:
        # The thread that owned it is gone. Either the process ends now, and will have an exit
        # status, or nobody is left to tell when code ends.
        pid = self.pid

        def give_up() -> None:
            if self.pid == pid:
                self.end("lost the thread that reports results")

        self.session.poller.at("control end", time.monotonic() + CONTROL_END_S, give_up)
