"""The agent: runs inside a jail, starts interpreters and runs code in them.

It speaks the protocol of ``docs/agent-protocol.md`` on its standard input and output. User code
never runs in this process: each interpreter is a child in a session of its own, with pipes for
its stdout and stderr and a private control socket. One thread, one poll loop, nothing blocks.

One file, standard library only, Python 3.9 or newer; the supervisor imports the framing from it.
From the top: framing, output capture, processes, interpreters (a new interpreter is one class),
the agent, the Python worker, the Bash driver, the Node runner, main.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

AGENT_VERSION = "0.1.0"
PROTOCOL = 1
CAPABILITIES = ("execute.timeout", "execute.result")

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Largest frame in either direction, without its length."""

READ_BYTES = 65536
MARKER_ATTEMPTS = 16
"""Tries to get a marker into a pipe that a background process keeps full."""

FIONREAD = 0x541B
PRIVATE_FD = 200
"""Private descriptors of workers are moved here or higher, out of the way of user code."""


# --------------------------------------------------------------------------------------- framing


class FrameError(ValueError):
    """A peer sent something that is not a frame.

    Attributes:
        fatal: the length itself was invalid, so the stream cannot be read any further.
    """

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """`message` as a frame: 4-byte big-endian length and UTF-8 JSON.

    Lone surrogates, which UTF-8 cannot hold, become ``?``.

    Raises:
        FrameError: it holds NaN or an infinity, or is larger than `MAX_FRAME_BYTES`.
    """
    try:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise FrameError(f"message is not plain JSON: {error}") from None
    body = text.encode("utf-8", "replace")
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(body)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _decode_body(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"frame is not valid JSON: {error}") from None
    if not isinstance(message, dict):
        raise FrameError(f"frame must hold a JSON object, found {type(message).__name__}")
    return message


class FrameReader:
    """Cuts a byte stream into messages; does no I/O.

    Args:
        limit: largest accepted frame body, bytes.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def receive_data(self, data: bytes) -> None:
        """Takes bytes as they came from the peer, in pieces of any size."""
        self._buffer += data

    def next_message(self) -> dict[str, Any] | None:
        """The next whole message, or None when more bytes are needed.

        Raises:
            FrameError: the next frame is invalid. It is skipped unless the error is `fatal`.
        """
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        length = int.from_bytes(buffer[:4], "big")
        if length > self._limit:
            raise FrameError(
                f"frame length {length} exceeds the limit of {self._limit} bytes", fatal=True
            )
        if len(buffer) < 4 + length:
            return None
        body = bytes(buffer[4 : 4 + length])
        del buffer[: 4 + length]
        return _decode_body(body)


class Link:
    """Frames over non-blocking descriptors: reads what is there, writes when there is room."""

    def __init__(self, read_fd: int, write_fd: int, limit: int = MAX_FRAME_BYTES) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.reader = FrameReader(limit)
        self._out = bytearray()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    def send_bytes(self, data: bytes) -> None:
        self._out += data
        self.flush()

    def flush(self) -> None:
        """Writes what the peer has room for.

        Raises:
            OSError: the peer is gone.
        """
        with contextlib.suppress(BlockingIOError):
            while self._out:
                del self._out[: os.write(self.write_fd, self._out[: 4 * READ_BYTES])]

    def receive(self) -> bool:
        """Reads once; False at end-of-file."""
        try:
            data = os.read(self.read_fd, 4 * READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.reader.receive_data(data)
        return bool(data)


# -------------------------------------------------------------------------------- output capture


class OutputPipe:
    """One output stream of an interpreter: a pipe that the agent reads and can mark."""

    def __init__(self) -> None:
        self.read_fd, self.child_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)
        # A description of its own: O_NONBLOCK on the child's would show up in user code.
        self.mark_fd = os.open(
            f"/proc/self/fd/{self.child_fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )

    def close_child_end(self) -> None:
        os.close(self.child_fd)

    def read(self) -> bytes:
        try:
            return os.read(self.read_fd, READ_BYTES)
        except BlockingIOError:
            return b""

    def _read_waiting(self) -> bytes:
        """What is in the pipe now, and not what a flood adds meanwhile."""
        waiting = int.from_bytes(fcntl.ioctl(self.read_fd, FIONREAD, b"\0" * 4), sys.byteorder)
        pieces: list[bytes] = []
        while waiting > 0:
            piece = self.read()
            if not piece:
                break
            pieces.append(piece)
            waiting -= len(piece)
        return b"".join(pieces)

    def cut(self) -> tuple[bytes, bytes]:
        """What was printed up to now, and what followed already.

        A marker with a fresh nonce goes into the pipe after what is there. Nothing here waits:
        what FIONREAD counts bounds the search, so code that steals the marker or floods the
        pipe changes only where its own output is cut.
        """
        marker = b"\0nsm-cut:" + os.urandom(16).hex().encode() + b"\0"
        before = b""
        for _ in range(MARKER_ATTEMPTS):
            try:
                os.write(self.mark_fd, marker)
                break
            except BlockingIOError:
                before += self._read_waiting()
        rest, _, after = self._read_waiting().partition(marker)
        return before + rest, after

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.mark_fd)


# ---------------------------------------------------------------------------------- interpreters


class Interpreter:
    """An interpreter in a process tree of its own. Subclasses say how to start it and talk to it.

    Attributes:
        pid: process id and process group; 0 when not running.
    """

    name = ""

    def __init__(self, agent: Agent, program: str) -> None:
        self.agent = agent
        self.program = program
        self.pid = 0
        self.pipes: dict[str, OutputPipe] = {}
        self.captured = {"stdout": bytearray(), "stderr": bytearray()}
        self.control: Link | None = None
        self.has_state = False
        self.lost_state = ""

    # What a subclass provides.

    def child_main(self, control_fd: int) -> NoReturn:
        """Runs in the new process, with its descriptors 0 to 2 in place; becomes the program."""
        raise NotImplementedError

    def on_start(self) -> None:
        """Runs in the agent after the fork."""

    def send_code(self, number: int, code: str) -> None:
        raise NotImplementedError

    def interrupt(self) -> None:
        os.killpg(self.pid, signal.SIGINT)

    def on_message(self, message: Mapping[str, Any]) -> None:
        if message.get("type") == "done":
            self.agent.on_done(self, message)

    # Life of the process.

    def start(self) -> None:
        self.pipes = {"stdout": OutputPipe(), "stderr": OutputPipe()}
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                self._become_child(theirs.detach())
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.write(2, f"cannot start {self.name}: {error!r}\n".encode())
                os._exit(127)
        self.pid = pid
        theirs.close()
        for pipe in self.pipes.values():
            pipe.close_child_end()
        fd = ours.detach()
        self.control = Link(fd, fd)
        self.agent.watch(self)
        self.on_start()

    def _become_child(self, control_fd: int) -> NoReturn:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(self.pipes["stdout"].child_fd, 1)
        os.dup2(self.pipes["stderr"].child_fd, 2)
        private = fcntl.fcntl(control_fd, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD)
        keep = self.kept_fds()
        for entry in os.listdir("/proc/self/fd"):
            if int(entry) > 2 and int(entry) != private and int(entry) not in keep:
                with contextlib.suppress(OSError):
                    os.close(int(entry))
        prctl(PR_SET_DUMPABLE, 1)
        with contextlib.suppress(OSError):
            os.chdir(self.agent.workspace)
        self.child_main(private)

    def kept_fds(self) -> tuple[int, ...]:
        return ()

    def on_control(self) -> None:
        link = self.control
        if link is None:
            return
        alive = link.receive()
        try:
            while self.control is link:
                message = link.reader.next_message()
                if message is None:
                    break
                self.on_message(message)
        except FrameError:
            alive = False
        if not alive and self.control is link:
            self.agent.unwatch_fd(link.read_fd)

    def on_output(self, stream: str) -> None:
        self.captured[stream] += self.pipes[stream].read()

    def take_output(self) -> dict[str, str]:
        """Everything printed so far, decoded; output of background processes from now on is kept."""
        texts: dict[str, str] = {}
        for stream, pipe in self.pipes.items():
            before, after = pipe.cut()
            texts[stream] = (bytes(self.captured[stream]) + before).decode("utf-8", "replace")
            self.captured[stream] = bytearray(after)
        return texts

    def forget(self) -> None:
        """Releases what belonged to a process that is gone."""
        self.agent.unwatch(self)
        for pipe in self.pipes.values():
            pipe.close()
        self.pipes = {}
        if self.control is not None:
            os.close(self.control.read_fd)
            self.control = None
        self.pid = 0

    def kill_tree(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class PythonInterpreter(Interpreter):
    name = "python"

    def child_main(self, control_fd: int) -> NoReturn:
        if os.path.realpath(self.program) == os.path.realpath(sys.executable):
            python_worker(control_fd)
        os.set_inheritable(control_fd, True)
        os.execv(
            self.program,
            [self.program, "-I", os.path.abspath(__file__), "--worker", str(control_fd)],
        )

    def send_code(self, number: int, code: str) -> None:
        assert self.control is not None
        self.control.send_bytes(encode_frame({"type": "run", "id": number, "code": code}))


class BashInterpreter(Interpreter):
    """One long-lived shell.

    It is an interactive one, so that an interrupt or a failed expansion aborts the code and not
    the shell, reading commands from a private socket; user code is never among them: it is
    sourced from a memory file that the agent rewrites. Descriptors 0 to 2 are the code's for the
    duration of that `source` only, so that what bash prints about the driver's lines goes nowhere.
    """

    name = "bash"
    CODE, NULL, OUT, ERR = 248, 249, 250, 251

    def __init__(self, agent: Agent, program: str) -> None:
        super().__init__(agent, program)
        self.code_fd = -1
        self.line = b""

    def start(self) -> None:
        if self.code_fd < 0:
            self.code_fd = os.memfd_create("code", os.MFD_CLOEXEC)
        super().start()

    def kept_fds(self) -> tuple[int, ...]:
        return (self.code_fd,)

    def child_main(self, control_fd: int) -> NoReturn:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        code = fcntl.fcntl(self.code_fd, fcntl.F_DUPFD, 10)
        null = fcntl.fcntl(0, fcntl.F_DUPFD, 10)
        out = fcntl.fcntl(1, fcntl.F_DUPFD, 10)
        err = fcntl.fcntl(2, fcntl.F_DUPFD, 10)
        for source, target in ((code, 3), (null, 4), (out, 5), (err, 6)):
            os.dup2(source, target)
            os.close(source)
        os.dup2(control_fd, 0)
        os.dup2(4, 1)
        os.dup2(4, 2)
        os.execv(
            self.program,
            ["bash", "--norc", "--noprofile", "--noediting", "+o", "history", "-i"],
        )

    def on_start(self) -> None:
        # The inner copies are those that bash saves while 3 to 6 are closed: close-on-exec, and
        # a copy of a close-on-exec descriptor is one too.
        self._send(
            f"{{ \\exec {self.CODE}<&10 {self.NULL}<&11 {self.OUT}>&12 {self.ERR}>&13; }} "
            "3<&- 4<&- 5>&- 6>&-\n"
            "\\exec 3<&- 4<&- 5>&- 6>&-\n"
        )

    def _send(self, text: str) -> None:
        assert self.control is not None
        self.control.send_bytes(text.encode())

    def send_code(self, number: int, code: str) -> None:
        data = code.encode("utf-8", "surrogateescape")
        os.ftruncate(self.code_fd, 0)
        os.pwrite(self.code_fd, data, 0)
        # An arithmetic error reports the status: no function, alias or disabled builtin can
        # stand in its way, and it is no command that `set -e` or an ERR trap reacts to.
        self._send(
            f"\\. /dev/fd/{self.CODE} <&{self.NULL} >&{self.OUT} 2>&{self.ERR}\n"
            f"(( $? @ {number} )) 2>&0 || (( 1 ))\n"
        )

    def on_control(self) -> None:
        assert self.control is not None
        try:
            data = os.read(self.control.read_fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.agent.unwatch_fd(self.control.read_fd)
            return
        *lines, self.line = (self.line + data).split(b"\n")
        self.line = self.line[-READ_BYTES:]
        for line in lines:
            words = line.partition(b"((: ")[2].split()
            if len(words) > 2 and words[1] == b"@" and words[0].isdigit() and words[2].isdigit():
                self.agent.on_done(self, {"id": int(words[2]), "exit_code": int(words[0])})


class NodeInterpreter(Interpreter):
    name = "node"

    def child_main(self, control_fd: int) -> NoReturn:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.set_inheritable(control_fd, True)
        source = NODE_RUNNER.replace("CONTROL_FD", str(control_fd))
        os.execv(self.program, [self.program, "-e", source])

    def interrupt(self) -> None:
        assert self.control is not None
        self.control.send_bytes(encode_frame({"type": "interrupt"}))

    def send_code(self, number: int, code: str) -> None:
        assert self.control is not None
        self.control.send_bytes(encode_frame({"type": "run", "id": number, "code": code}))


INTERPRETERS = {kind.name: kind for kind in (PythonInterpreter, BashInterpreter, NodeInterpreter)}


# ----------------------------------------------------------------------------------------- agent


class Execution:
    """The piece of code that runs now."""

    def __init__(self, request_id: str, number: int, interpreter: Interpreter) -> None:
        self.id = request_id
        self.number = number
        self.interpreter = interpreter
        self.started = time.monotonic()
        self.deadline: float | None = None
        self.grace_s = 2.0
        self.timed_out = False
        self.interrupted = False
        self.killed = False
        self.restart_reason = ""


class Agent:
    """Frames from the supervisor on one side, interpreters on the other."""

    def __init__(self, read_fd: int, write_fd: int, programs: Mapping[str, str], workspace: str):
        self.workspace = workspace
        self.link = Link(read_fd, write_fd)
        self.interpreters = {
            name: INTERPRETERS[name](self, program) for name, program in programs.items()
        }
        self.running: Execution | None = None
        self.executions = 0
        self.poll = select.poll()
        self.handlers: dict[int, Callable[[], None]] = {}
        self.wakeup_fd, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def run(self, prestart: str | None) -> NoReturn:
        if prestart is not None:
            self.interpreters[prestart].start()
        self.watch_fd(self.wakeup_fd, self.reap)
        self.watch_fd(self.link.read_fd, self.on_channel)
        self.send(
            type="ready",
            protocol=PROTOCOL,
            agent=AGENT_VERSION,
            python=".".join(map(str, sys.version_info[:3])),
            pid=os.getpid(),
            interpreters=sorted(self.interpreters),
            capabilities=list(CAPABILITIES),
        )
        while True:
            self.turn()

    def turn(self) -> None:
        if self.link.wants_write:
            try:
                self.link.flush()
            except OSError:
                self.end()
        same = self.link.read_fd == self.link.write_fd
        self.poll.register(
            self.link.read_fd,
            select.POLLIN | (select.POLLOUT if same and self.link.wants_write else 0),
        )
        if not same and self.link.wants_write:
            self.poll.register(self.link.write_fd, select.POLLOUT)
        for interpreter in self.interpreters.values():
            control = interpreter.control
            if control is not None and control.read_fd in self.handlers:
                if control.wants_write:
                    with contextlib.suppress(OSError):
                        control.flush()
                self.poll.register(
                    control.read_fd, select.POLLIN | (select.POLLOUT if control.wants_write else 0)
                )
        for fd, _ in self.poll.poll(self.next_timeout_ms()):
            handler = self.handlers.get(fd)
            if handler is not None:
                handler()
        self.check_deadline()

    def next_timeout_ms(self) -> float | None:
        if self.running is None or self.running.deadline is None:
            return None
        return max(0.0, (self.running.deadline - time.monotonic()) * 1000 + 1)

    def check_deadline(self) -> None:
        execution = self.running
        if execution is None or execution.deadline is None:
            return
        if time.monotonic() < execution.deadline:
            return
        if not execution.timed_out and not execution.interrupted:
            execution.timed_out = True
            self.interrupt(execution)
        elif not execution.killed:
            execution.killed = True
            execution.deadline = None
            execution.restart_reason = (
                f"the code did not stop within {execution.grace_s:g} s of being interrupted, "
                "so its process tree was killed"
            )
            execution.interpreter.kill_tree()

    def interrupt(self, execution: Execution) -> None:
        execution.deadline = time.monotonic() + execution.grace_s
        with contextlib.suppress(OSError):
            execution.interpreter.interrupt()

    # Descriptors.

    def watch_fd(self, fd: int, handler: Callable[[], None]) -> None:
        self.handlers[fd] = handler
        self.poll.register(fd, select.POLLIN)

    def unwatch_fd(self, fd: int) -> None:
        if self.handlers.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def watch(self, interpreter: Interpreter) -> None:
        assert interpreter.control is not None
        self.watch_fd(interpreter.control.read_fd, interpreter.on_control)
        for stream, pipe in interpreter.pipes.items():
            self.watch_fd(pipe.read_fd, lambda stream=stream: interpreter.on_output(stream))

    def unwatch(self, interpreter: Interpreter) -> None:
        if interpreter.control is not None:
            self.unwatch_fd(interpreter.control.read_fd)
        for pipe in interpreter.pipes.values():
            self.unwatch_fd(pipe.read_fd)

    # Supervisor.

    def send(self, **message: Any) -> None:
        try:
            self.link.send_bytes(encode_frame(message))
        except OSError:
            self.end()

    def end(self) -> NoReturn:
        for interpreter in self.interpreters.values():
            if interpreter.pid:
                interpreter.kill_tree()
        os._exit(0)

    def on_channel(self) -> None:
        alive = self.link.receive()
        while True:
            try:
                message = self.link.reader.next_message()
            except FrameError as error:
                self.send(type="error", message=str(error))
                if error.fatal:
                    self.end()
                continue
            if message is None:
                break
            self.on_request(message)
        if not alive:
            self.end()

    def on_request(self, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "execute":
            self.execute(message)
        elif kind == "ping":
            self.send(type="pong")
        elif kind == "shutdown":
            self.end()
        else:
            self.send(
                type="error",
                message=f"unknown type {kind!r}: expected execute, ping or shutdown",
            )

    def execute(self, message: Mapping[str, Any]) -> None:
        request_id, code, name = message.get("id"), message.get("code"), message.get("interpreter")
        if not isinstance(request_id, (str, int)) or not isinstance(code, str):
            self.send(type="error", message="execute needs id and code (text)")
            return
        interpreter = self.interpreters.get(name) if isinstance(name, str) else None
        if interpreter is None:
            have = ", ".join(sorted(self.interpreters))
            self.send(
                type="error",
                id=request_id,
                message=f"interpreter {name!r} is not available in this session: it has {have}",
            )
            return
        if self.running is not None:
            self.send(
                type="error",
                id=request_id,
                message="another execution is running: wait for its result",
            )
            return
        self.executions += 1
        execution = Execution(request_id, self.executions, interpreter)
        if not interpreter.pid:
            interpreter.start()
        timeout_s, grace_s = message.get("timeout_s"), message.get("grace_s")
        if isinstance(timeout_s, (int, float)):
            execution.deadline = execution.started + timeout_s
        if isinstance(grace_s, (int, float)):
            execution.grace_s = float(grace_s)
        self.running = execution
        interpreter.send_code(execution.number, code)

    def on_done(self, interpreter: Interpreter, message: Mapping[str, Any]) -> None:
        execution = self.running
        if execution is None or execution.interpreter is not interpreter:
            return
        if message.get("id") != execution.number:
            return
        code = message.get("exit_code")
        self.finish(execution, code & 255 if isinstance(code, int) else 1, message)

    def finish(self, execution: Execution, exit_code: int, message: Mapping[str, Any]) -> None:
        interpreter = execution.interpreter
        texts = interpreter.take_output()
        reason = interpreter.lost_state or execution.restart_reason
        interpreter.lost_state = execution.restart_reason
        self.running = None
        if execution.timed_out:
            exit_code = 124
        elif execution.interrupted:
            exit_code = 130
        displays = message.get("displays")
        self.send(
            type="result",
            id=execution.id,
            stdout=texts["stdout"],
            stderr=texts["stderr"],
            exit_code=exit_code,
            duration_s=time.monotonic() - execution.started,
            displays=displays if isinstance(displays, list) else [],
            truncated={},
            timed_out=execution.timed_out,
            interrupted=execution.interrupted,
            interpreter_restarted=bool(reason),
            restart_reason=reason,
        )

    # Processes.

    def reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup_fd, READ_BYTES)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for interpreter in self.interpreters.values():
                if interpreter.pid == pid:
                    self.on_death(interpreter, status)

    def on_death(self, interpreter: Interpreter, status: int) -> None:
        interpreter.on_control()
        interpreter.kill_tree()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            exit_code, reason = 128 + number, f"the interpreter died of signal {number}"
        else:
            exit_code = os.WEXITSTATUS(status)
            reason = f"the interpreter exited with status {exit_code}"
        execution = self.running
        if execution is not None and execution.interpreter is interpreter:
            execution.restart_reason = execution.restart_reason or reason
            self.finish(execution, exit_code, {})
        else:
            interpreter.lost_state = reason
        interpreter.forget()


# --------------------------------------------------------------------------------- Python worker


def python_worker(control_fd: int) -> NoReturn:
    """Runs code from `control_fd` in a `__main__` module of its own until end-of-file."""
    worker = PythonWorker(control_fd)
    worker.serve()
    os._exit(0)


class PythonWorker:
    def __init__(self, control_fd: int) -> None:
        import builtins
        import io
        import types

        self.control_fd = control_fd
        self.reader = FrameReader()
        self.displays: list[dict[str, Any]] = []
        self.builtins = builtins
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        module.__dict__["display"] = self.display
        sys.modules["__main__"] = module
        self.namespace = module.__dict__
        sys.argv = [""]
        sys.path.insert(0, "")
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True
        )
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False),
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        sys.displayhook = self.display_value
        self.armed = False
        signal.signal(signal.SIGINT, self.on_interrupt)

    def on_interrupt(self, *_: object) -> None:
        if self.armed:
            raise KeyboardInterrupt

    def serve(self) -> None:
        while True:
            message = self.reader.next_message()
            if message is None:
                data = os.read(self.control_fd, READ_BYTES)
                if not data:
                    return
                self.reader.receive_data(data)
                continue
            exit_code = self.execute(message["id"], message["code"])
            reply = encode_frame(
                {
                    "type": "done",
                    "id": message["id"],
                    "exit_code": exit_code,
                    "displays": self.displays,
                }
            )
            self.displays = []
            while reply:
                reply = reply[os.write(self.control_fd, reply) :]

    def display(self, value: object) -> None:
        self.displays.append({"text/plain": repr(value)})

    def display_value(self, value: object) -> None:
        if value is not None:
            self.display(value)
            self.builtins.__dict__["_"] = value

    def execute(self, number: int, code: str) -> int:
        import ast
        import linecache
        import traceback

        name = f"<exec {number}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            tree = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            first = compile(tree, name, "exec", dont_inherit=True)
            self.armed = True
            exec(first, self.namespace)
            if last is not None:
                tail = compile(ast.Interactive([last]), name, "single", dont_inherit=True)
                exec(tail, self.namespace)
            self.armed = False
        except SystemExit as leave:
            self.armed = False
            if leave.code is None or isinstance(leave.code, int):
                return (leave.code or 0) & 255
            print(leave.code, file=sys.stderr)
            return 1
        except BaseException as error:
            self.armed = False
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
                trace = trace.tb_next
            traceback.print_exception(type(error), error, trace)
            return 130 if isinstance(error, KeyboardInterrupt) else 1
        return 0


# ----------------------------------------------------------------------------------- Node runner

NODE_RUNNER = r"""
'use strict';
const inspector = require('node:inspector');
const util = require('node:util');
const { Worker } = require('node:worker_threads');
const { createRequire } = require('node:module');
globalThis.require = createRequire(process.cwd() + '/');
process.execArgv = [];
const worker = new Worker(`
  const { parentPort } = require('node:worker_threads');
  const net = require('node:net');
  const inspector = require('node:inspector');
  const session = new inspector.Session();
  session.connectToMainThread();
  const socket = new net.Socket({ fd: CONTROL_FD, readable: true, writable: true });
  let buffer = Buffer.alloc(0), running = null;
  const done = (message) => {
    running = null;
    const body = Buffer.from(JSON.stringify(message));
    const head = Buffer.alloc(4);
    head.writeUInt32BE(body.length);
    socket.write(Buffer.concat([head, body]));
  };
  parentPort.on('message', (message) => { if (message.id === running) done(message); });
  socket.on('data', (data) => {
    buffer = Buffer.concat([buffer, data]);
    while (buffer.length >= 4 && buffer.length >= 4 + buffer.readUInt32BE(0)) {
      const end = 4 + buffer.readUInt32BE(0);
      const message = JSON.parse(buffer.subarray(4, end).toString());
      buffer = buffer.subarray(end);
      if (message.type === 'run') { running = message.id; parentPort.postMessage(message); }
      else if (message.type === 'interrupt') {
        const id = running;
        session.post('Runtime.terminateExecution', () => {
          session.post('Runtime.evaluate', { expression: '0' }, () => setTimeout(() => {
            if (running === id && id !== null) done({ type: 'done', id, exit_code: 130, displays: [] });
          }, 20));
        });
      }
    }
  });
  socket.on('end', () => process.exit());
  socket.on('error', () => process.exit());
`, { eval: true });
worker.on('exit', () => process.exit());
const session = new inspector.Session();
session.connect();
const trim = (stack) => stack.replace(/\n    at Session\.post \(node:inspector[^]*$/, '');
const show = (error) => {
  if (error instanceof Error) { try { error.stack = trim(error.stack); } catch {} }
  process.stderr.write('Uncaught ' + util.inspect(error) + '\n');
};
process.on('uncaughtException', show);
const take = (remote) => {
  if (!remote.objectId) {
    return remote.unserializableValue ? (0, eval)(remote.unserializableValue) : remote.value;
  }
  let value;
  globalThis.__nsm_take = (v) => { value = v; };
  session.post('Runtime.callFunctionOn', {
    functionDeclaration: 'function (v) { globalThis.__nsm_take(v); }',
    arguments: [{ objectId: remote.objectId }], objectId: remote.objectId,
  }, () => {});
  delete globalThis.__nsm_take;
  return value;
};
worker.on('message', ({ id, code }) => {
  session.post('Runtime.evaluate', {
    expression: code + '\n//# sourceURL=<exec-' + id + '>', replMode: true, awaitPromise: true,
    objectGroup: 'exec',
  }, (error, outcome) => {
    let exit_code = 0, displays = [];
    if (error) exit_code = 130;
    else if (outcome.exceptionDetails) {
      exit_code = 1;
      show(take(outcome.exceptionDetails.exception));
    } else {
      const value = take(outcome.result);
      if (value !== undefined) displays = [{ 'text/plain': util.inspect(value) }];
    }
    session.post('Runtime.releaseObjectGroup', { objectGroup: 'exec' });
    process.stdout.write('', () => process.stderr.write('', () => {
      worker.postMessage({ type: 'done', id, exit_code, displays });
    }));
  });
});
"""


# ------------------------------------------------------------------------------------------ main

PR_SET_DUMPABLE = 4


def prctl(option: int, value: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def claim_channel() -> tuple[int, int]:
    """Moves the channel away from descriptors 0 and 1, which become /dev/null and the log."""
    read_fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD)
    write_fd = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return read_fd, write_fd


def main(arguments: list[str]) -> NoReturn:
    import shutil

    if arguments[:1] == ["--worker"]:
        os.set_inheritable(int(arguments[1]), False)
        python_worker(int(arguments[1]))
    options = {"--prestart": "", "--python": "", "--bash": "", "--node": "", "--workspace": ""}
    for option, value in zip(arguments[::2], arguments[1::2]):
        if option not in options:
            sys.exit(f"unknown option {option}: expected one of {', '.join(options)}")
        options[option] = value
    prctl(PR_SET_DUMPABLE, 0)
    programs = {
        "python": options["--python"] or sys.executable,
        "bash": options["--bash"] or shutil.which("bash") or "",
        "node": options["--node"] or shutil.which("node") or "",
    }
    workspace = options["--workspace"] or "/workspace"
    read_fd, write_fd = claim_channel()
    agent = Agent(
        read_fd, write_fd, {name: path for name, path in programs.items() if path}, workspace
    )
    agent.run(options["--prestart"] or None)


if __name__ == "__main__":
    main(sys.argv[1:])
