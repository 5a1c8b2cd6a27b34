"""Checkpoints: what a session was after its last calls, for undo.

A checkpoint is a frozen copy of the interpreter's process (`workers.python.freezer`), and copies of
the files of that moment (`file_states`). It is made after an answer, while the session is idle. The
first one has no process: before any code has run, a new interpreter is the same.

The fork is the checkpoint and the interpreter goes on: if the parent froze, each call would have
another process id and no children.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time

from sandbox.file_states import ContentStore, FileLook, FileReturn, UnkeptError
from sandbox.framing import READ_BYTES, FrameError
from sandbox.interpreters.framed import PythonInterpreter
from sandbox.overlay_layers import return_overlay
from sandbox.processes import has_children_of, read_children, read_process, signal_child
from sandbox.workers.python.freezer import ASKED, FROZEN, MAX_REASON, NOT_FROZEN, THAW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox.file_states import Entry
    from sandbox.interpreters.base import CurrentExecution, Interpreter
    from sandbox.processes import ProcessTrees
    from sandbox.session import SharedSession


ANSWER_MS = 2000
"""Time for a checkpoint to answer that it is there. It does nothing else."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

TEMPORARY = "/tmp"  # noqa: S108  # the session's own

CREDENTIALS = struct.Struct("3i")

NOT_TAKEN_BACK = (
    "processes that code had started are gone. Not taken back: what went over a network, and what "
    "programs of the host did"
)
NOR_THE_COPY = ", and changes to the copy of the project"

TOO_MUCH = "the files of the session take more memory than checkpoints may"

OTHERS = {
    "bash": "earlier states are kept of Python only; the user's `nsm fork` copies a shell before "
    "something is tried in it",
    "node": "earlier states are kept of Python only",
}


class Checkpoint:
    """State of a session after one call.

    Attributes:
        pid: of the copy that waits; 0 for none.
        has_process: a copy waits or was asked for; else the interpreter is a new one.
        files: paths and what was there; empty if the files could not be kept.
        layers: what was changed in each of the session's overlays; empty if that is not known.
        refusal: why it is of no use; empty if it is of use.
        bound_bytes: memory that it may hold beside the worker, at most.
    """

    def __init__(self) -> None:
        self.pid = 0
        self.has_process = False
        self.files: dict[str, Entry] = {}
        self.layers: Sequence[Entry | None] = ()
        self.refusal = ""
        self.bound_bytes = 0
        self.link: socket.socket | None = None


class Checkpoints:
    """Checkpoints of a session's Python, the newest last; the newest is the present state."""

    def __init__(self, session: SharedSession, trees: ProcessTrees) -> None:
        self._session = session
        self._trees = trees
        trees.find_helpers = self._find_processes
        trees.exit_handlers.append(lambda pid, _status, _usage: self._on_exit(pid))
        self._kept: list[Checkpoint] = []
        self._contents = ContentStore()
        self._target: Checkpoint | None = None
        self._faults = 0
        self.is_stale = False

    def _find_processes(self) -> None:
        """Take what those have said that have not told yet which process they are."""
        for each in self._kept:
            if not each.pid:
                self._receive(each)

    def count(self, *, is_present: bool) -> int:
        """Number of states that can be gone back to. If the newest is not the present state, that
        has none yet."""
        earlier = self._kept[:-1] if is_present else self._kept[-self._session.limits.undo :]
        return sum(not each.refusal for each in earlier)

    # Making them.

    def before(self, interpreter: Interpreter) -> None:
        """Note the state before code runs, if no checkpoint has it."""
        if not isinstance(interpreter, PythonInterpreter):
            return
        if not self._kept:
            self._kept.append(first := Checkpoint())
            self._look(first, interpreter)
            if interpreter.has_state:  # a fork of a session: its first call can be undone, too
                self._copy(first, interpreter)
        elif self.is_stale and self._kept[-1].files:
            self._look(self._kept[-1], interpreter)
        self.is_stale = False

    def after(self, interpreter: Interpreter) -> None:
        """Make a checkpoint, after an answer."""
        if isinstance(interpreter, PythonInterpreter) and self._kept:
            self._note_memory(interpreter)
            self._kept.append(made := Checkpoint())
            while len(self._kept) > self._session.limits.undo + 1:
                self._drop(self._kept.pop(0))
            if len(self._kept) > 1 and self._kept[-2].files:
                # The worker forks while the agent looks at the files: after one success, the files
                # can most likely be kept again.
                self._copy(made, interpreter)
                self._look(made, interpreter)
                if made.refusal:
                    self._lose(made, made.refusal)
            else:
                self._look(made, interpreter)
                self._copy(made, interpreter)

    def _look(self, checkpoint: Checkpoint, interpreter: Interpreter) -> None:
        """Copy the present files into a checkpoint."""
        mapped = mapped_files(interpreter.pid)
        while True:
            before = next((each for each in reversed(self._kept) if each.files), checkpoint)
            known, known_layers = before.files, before.layers
            look = FileLook(self._contents, self._session.limits.undo_bytes, mapped)
            checkpoint.files, checkpoint.layers = {}, ()
            try:
                for path in self._directories():
                    checkpoint.files[path] = look.at(path, known.get(path))
                overlays = self._session.layers
                known_layers = known_layers or [None] * len(overlays)
                checkpoint.layers = [
                    look.layer(each[0], layer) for each, layer in zip(overlays, known_layers)
                ]
                if look.lacks_room:
                    fits = look.total_bytes <= self._session.limits.undo_bytes
                    if fits and self._kept[0] is not checkpoint:
                        self._drop(self._kept.pop(0))
                        continue
                    checkpoint.refusal = TOO_MUCH
            except (UnkeptError, OSError) as error:
                checkpoint.refusal = f"its files could not be kept: {error}"
            if checkpoint.refusal:
                checkpoint.files, checkpoint.layers = {}, ()
            return

    def _directories(self) -> list[str]:
        found = [self._session.workspace]
        if self._session.pid == 1 and os.path.ismount(TEMPORARY):
            found.append(TEMPORARY)
        return found

    def _copy(self, checkpoint: Checkpoint, interpreter: PythonInterpreter) -> None:
        """Have the worker make a copy of itself."""
        if not interpreter.pid or checkpoint.refusal:
            return
        checkpoint.has_process = True
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            checkpoint.refusal = f"there was no descriptor for it: {error.strerror}"
            return
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.setblocking(False)
        checkpoint.link = ours
        self._session.poller.watch(ours.fileno(), lambda _: self._read(checkpoint))
        try:
            interpreter.freeze(theirs.detach())
        except FrameError as error:
            self._lose(checkpoint, str(error))

    def _read(self, checkpoint: Checkpoint) -> None:
        self._receive(checkpoint)

    def _receive(self, checkpoint: Checkpoint) -> bytes:
        """Take a message of a checkpoint; empty if there is none, or it is gone."""
        if checkpoint.link is None:
            return b""
        try:
            data, parts, _, _ = checkpoint.link.recvmsg(
                MAX_REASON + 1, socket.CMSG_SPACE(CREDENTIALS.size)
            )
        except BlockingIOError:
            return b""
        except OSError:
            data, parts = b"", []
        if data == FROZEN:
            for _, kind, packed in parts:
                if kind == socket.SCM_CREDENTIALS:
                    self._know(checkpoint, CREDENTIALS.unpack(packed)[0])
        elif data[:1] == NOT_FROZEN:
            self._lose(checkpoint, data[1:].decode(errors="replace"))
        elif not data:
            self._lose(checkpoint, "its process has ended; code of the session may have killed it")
        return data

    def _know(self, checkpoint: Checkpoint, pid: int) -> None:
        """Take the process that calls itself a checkpoint; its pid comes from the kernel."""
        row = read_process(pid)
        leaders = {each.pid for each in self._trees.live_interpreters()}
        if checkpoint.pid or pid in leaders or row is None or row.parent != self._session.pid:
            self._lose(checkpoint, "code of the session interfered")
            return
        checkpoint.pid = pid
        self._trees.helpers.add(pid)
        self._trees.orphans.pop(pid, None)

    def _lose(self, checkpoint: Checkpoint, why: str) -> None:
        self._drop(checkpoint)
        checkpoint.refusal = why

    def _drop(self, checkpoint: Checkpoint) -> None:
        """End the process of a checkpoint, and forget its files."""
        if checkpoint.link is not None:
            self._session.poller.forget(checkpoint.link.fileno())
            checkpoint.link.close()
            checkpoint.link = None
        if checkpoint.pid:
            signal_child(checkpoint.pid, signal.SIGKILL)
            checkpoint.pid = 0
        checkpoint.files, checkpoint.layers = {}, ()

    def _on_exit(self, pid: int) -> None:
        """Handle the end of a process, which may be one of a checkpoint."""
        for checkpoint in self._kept:
            if checkpoint.pid == pid:
                checkpoint.pid = 0
                self._lose(checkpoint, "its process was killed, for lack of memory or by code")

    # Memory.

    def _note_memory(self, interpreter: Interpreter) -> None:
        """Drop the oldest while all hold more memory than they may.

        A page that the worker has written to since is one that a checkpoint may hold alone. So the
        number of its page faults is a bound, and the pages are only counted if that is too high.
        """
        row = read_process(interpreter.pid)
        faults = 0 if row is None else row.faults
        new, self._faults = max(0, faults - self._faults), faults
        self._kept[-1].bound_bytes = new * PAGE_BYTES
        limit = self._session.limits.undo_bytes
        if self._contents.bytes + sum(each.bound_bytes for each in self._kept) <= limit:
            return
        while len(self._kept) > 1:
            held = held_bytes({each.pid for each in self._kept if each.pid}, interpreter.pid)
            for each in self._kept:
                each.bound_bytes = held // len(self._kept)
            if self._contents.bytes + held <= limit:
                return
            self._drop(self._kept.pop(0))

    # Going back.

    def undo(self, execution: CurrentExecution, steps: object) -> int | None:
        """Go back by so many calls, as the running execution. Return the exit code; None if the
        interpreter is still to say that it is done, or was ended."""
        interpreter = execution.interpreter
        try:
            target = self._find(interpreter, steps)
        except UnkeptError as error:
            interpreter.captures["stderr"].write(f"nothing was undone: {error}\n".encode())
            return 1
        assert isinstance(interpreter, PythonInterpreter), "others have no checkpoints"
        mapped = mapped_files(interpreter.pid)
        while self._kept[-1] is not target:
            self._drop(self._kept.pop())
        if interpreter.pid:
            self._end(interpreter)
        interpreter.lost = ""
        back = FileReturn(self._contents, mapped)
        for path, entry in target.files.items():
            try:
                back.to(path, entry)
            except OSError as error:
                back.failed.append(f"{path} ({error.strerror})")
        for overlay, layer in zip(self._session.layers, target.layers):
            if layer is not None:
                has_mapped = bool(mapped)
                back.failed += return_overlay(self._contents, overlay, layer, has_mapped=has_mapped)
        self._tell(interpreter, steps, back)
        if not target.has_process:
            return 0
        self._target = target
        try:
            interpreter.thaw(target.pid, execution.number, self._wake)
        except OSError as error:
            interpreter.end(f"the checkpoint cannot be woken: {error.strerror}")
        return None

    def _end(self, interpreter: Interpreter) -> None:
        """End an interpreter and all that it started, so that nothing more is written to files.

        One that has stopped is amid no write. So nobody has to wait for its end, which takes longer
        the more memory it has.
        """
        if self._stop_alone(interpreter):
            signal_child(interpreter.pid, signal.SIGKILL)
            self._trees.helpers.add(interpreter.pid)
            interpreter.forget("")
        else:
            interpreter.discard("")
        self._trees.reap()

    def _stop_alone(self, interpreter: Interpreter) -> bool:
        """Stop an interpreter; return whether it has stopped, and nothing else is to be ended."""
        trees, pid = self._trees, interpreter.pid
        if not trees.is_alone(interpreter):
            return False
        signal_child(pid, signal.SIGSTOP)
        told = select.poll()
        told.register(trees.wakeup_fd, select.POLLIN)
        deadline = time.monotonic() + ANSWER_MS / 1000
        how = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, pid, how) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            told.poll(left_s * 1000)
            with contextlib.suppress(BlockingIOError):
                os.read(trees.wakeup_fd, READ_BYTES)
        trees.find_helpers()
        others = read_children(self._session.pid) - trees.helpers - {pid}
        return not (others or has_children_of(pid))

    def _wake(self, order: str, descriptors: list[int]) -> None:
        """Send a checkpoint what it needs to be the worker."""
        target = self._target
        if target is None or target.link is None:
            raise OSError(0, "it is gone")
        socket.send_fds(target.link, [THAW + order.encode()], descriptors)
        # From now on it is the worker.
        self._session.poller.forget(target.link.fileno())
        target.link.close()
        self._trees.helpers.discard(target.pid)
        target.link, target.pid = None, 0

    def _find(self, interpreter: Interpreter, steps: object) -> Checkpoint:
        """Find the checkpoint to go back to, and see that it is there. Raise UnkeptError if there
        is none; the message says why."""
        if interpreter.name in OTHERS:
            raise UnkeptError(
                f"{OTHERS[interpreter.name]}; `nsm save` and `nsm restore` keep what can be kept"
            )
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise UnkeptError("the number of calls to undo must be a whole number above 0")
        most = len(self._kept) - 1
        if steps > most:
            raise UnkeptError(words_of(max(0, most)))
        target = self._kept[-1 - steps]
        if target.has_process and not target.refusal:
            self._await_answer(target)
        if target.refusal:
            others = [n for n in range(1, most + 1) if not self._kept[-1 - n].refusal]
            instead = f"; `undo {others[0]}` goes back to an earlier state" if others else ""
            raise UnkeptError(f"that state was not kept: {target.refusal}{instead}")
        return target

    def _await_answer(self, checkpoint: Checkpoint) -> None:
        """Have a checkpoint say that it is there. Code may have stopped its process."""
        if checkpoint.link is None:
            return
        poll = select.poll()
        poll.register(checkpoint.link, select.POLLIN)
        if checkpoint.pid:
            signal_child(checkpoint.pid, signal.SIGCONT)
        with contextlib.suppress(OSError):
            checkpoint.link.send(ASKED)
        for _ in range(2):  # it may not have said yet that it was made
            if not poll.poll(ANSWER_MS):
                break
            if self._receive(checkpoint) == ASKED and checkpoint.pid:
                return
        if not checkpoint.refusal:
            self._lose(checkpoint, "its process does not answer; code may have stopped it")

    def _tell(self, interpreter: Interpreter, steps: object, back: FileReturn) -> None:
        """Say what was undone and what was not."""
        count = len(self._kept) - 1
        calls = "the last call" if steps == 1 else f"the last {steps} calls"
        text = f"undid {calls}: variables, working directory and files are as they were before\n"
        interpreter.captures["stdout"].write(text.encode())
        interpreter.add_note(words_of(count))
        copy_stays = not self._session.layers and _has_overlay()
        interpreter.add_note(f"{NOT_TAKEN_BACK}{NOR_THE_COPY if copy_stays else ''}")
        if self._trees.jobs:
            interpreter.add_note("jobs go on, and files that they write are as they were, too")
        if back.failed:
            interpreter.add_note(f"not as they were: {', '.join(back.failed)}")

    def renew(self, interpreter: Interpreter) -> None:
        """Make a new checkpoint after an undo, since the old one is the worker now."""
        self._target = None
        if isinstance(interpreter, PythonInterpreter) and self._kept:
            newest = self._kept[-1]
            if newest.has_process and not newest.pid:
                self._copy(newest, interpreter)


def words_of(count: int) -> str:
    """Say how far an undo can go."""
    if not count:
        return "no earlier state is kept"
    return f"{count} earlier {'state is' if count == 1 else 'states are'} kept"


def mapped_files(pid: int) -> set[int]:
    """Inodes of files that a process has mapped into memory so that it can write to them."""
    if not pid:
        return set()
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            lines = [line.split(None, 5) for line in file if b" rw-s " in line]
    except OSError:
        return set()
    return {int(line[4]) for line in lines if line[4] != b"0"}


def held_bytes(pids: set[int], worker: int) -> int:
    """Memory that there would not be without these copies of a worker.

    A page that the worker and copies share counts for each of them by its share. What the worker
    lacks of its own pages is what the copies have of them.
    """
    held = sum(memory_of(pid)["Pss"] for pid in pids)
    own = memory_of(worker)
    return max(0, held - (own["Rss"] - own["Pss"]))


def memory_of(pid: int) -> dict[str, int]:
    """Bytes that a process has, and its share of them; zeros where it is gone."""
    found = {"Rss": 0, "Pss": 0}
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb", buffering=0) as file:
            for line in file.read(4096).splitlines():
                name, _, rest = line.partition(b":")
                if name in (b"Rss", b"Pss"):
                    found[name.decode()] = int(rest.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return found


def _has_overlay() -> bool:
    """Tell whether there is a copy of the project, with changes of its own."""
    try:
        with open("/proc/self/mounts", "rb") as mounts:
            rows = [row.split() for row in mounts]
    except OSError:  # no descriptor is left: better one warning too many
        return True
    return any(row[2] == b"overlay" and b"rw" in row[3].split(b",") for row in rows)
