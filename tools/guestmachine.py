"""Test machines: qemu without hardware's help, cloned from one that has booted.

A machine is booted once for each image, stopped when its services are up, and its memory and state
are kept beside the image. Each guest is a clone: it maps that memory copy-on-write and goes on from
there in a fraction of a second. It has no network; the host talks to a program in it over a
virtio-serial port (tools/guestagent.py). qemu runs with the rights of whoever started it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from guestimage import Image, digest, locked, replacing, say

MEMORY_MB = 2048
PROCESSORS = 2
BOOT_S = 300.0
"""On a machine that does much else; alone it takes some ten seconds."""
RUN_S = 120.0
"""Time limit for a command that has no limit of its own."""
QMP_S = 60.0
END_S = 10.0
PIECE = 1 << 20

UP = """
systemctl is-system-running --wait
systemctl is-active user@$(id -u ada).service
while ! [ -S /run/user/$(id -u ada)/bus ]; do sleep 0.1; done
for clone in /home/ada/nsm /opt/nsm; do
    $clone/.venv/bin/python -c 'import cbor2, mcp.server.lowlevel, pydantic, trio'
    $clone/.venv/bin/python -c 'import hypothesis, pytest'
done
python3 -c 'import asyncio, subprocess, json, sqlite3, ssl'
node -e 'require("repl"); require("http")'
bwrap --version >/dev/null; git --version >/dev/null; ssh -V 2>/dev/null; tar --version >/dev/null
"""
"""Work of a machine before it is copied: everything is up, and much is in the page cache, because
reading and uncompressing it takes an emulated processor longer than running it.
"""


class GuestError(Exception):
    """The machine did not do what was asked; the message has what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that has ended in the guest."""

    status: int
    stdout: str
    stderr: str

    def check(self) -> str:
        """The output, if it succeeded.

        Raises:
            GuestError: it failed.
        """
        if self.status:
            raise GuestError(f"status {self.status}\n{self.stdout}{self.stderr}")
        return self.stdout


class Guest:
    """A running machine.

    Resources: use it as a context manager, or `close` it; the machine is gone then.
    """

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self._directory = directory
        self._process = process
        self._monitor = _connect(directory / "qmp", process)
        self._lines = self._monitor.makefile("rb")
        self._qmp_greeting = json.loads(self._lines.readline())
        self.qmp("qmp_capabilities")
        self._port: socket.socket | None = None
        self._ids = itertools.count(1)
        self._sending = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[tuple[dict[str, Any], bytes] | None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Guest pid={self._process.pid} {'down' if self._process.poll() else 'up'}>"

    def close(self) -> None:
        """End the machine at once."""
        self._process.kill()
        self._process.wait(END_S)
        self._lines.close()
        self._monitor.close()
        if self._port is not None:
            self._port.close()

    def console(self) -> str:
        """Return the kernel's messages so far."""
        return (self._directory / "console").read_text(errors="replace")

    # The machine from outside

    def qmp(self, command: str, **arguments: object) -> dict[str, Any]:
        """A command of qemu's monitor."""
        request = {"execute": command, "arguments": arguments}
        self._monitor.sendall(json.dumps(request).encode() + b"\n")
        for line in self._lines:
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise GuestError(f"qemu, {command}: {answer['error']}")
            if "return" in answer:
                return answer
        raise GuestError(f"qemu ended: {self._log()}")

    def wait_migrated(self) -> None:
        """Wait until the machine's state is where it was sent, or is here."""
        deadline = time.monotonic() + QMP_S
        while (state := self.qmp("query-migrate")["return"].get("status")) != "completed":
            if state == "failed" or time.monotonic() > deadline:
                raise GuestError(f"qemu: the machine's state is {state}: {self._log()}")
            time.sleep(0.01)  # its events for this are not sent in all versions

    # The machine from inside

    def attach(self, timeout_s: float) -> None:
        """Wait until the program in the guest answers."""
        self._port = _connect(self._directory / "port", self._process)
        threading.Thread(target=self._read, args=(self._port,), daemon=True).start()
        with self._request({"op": "ping"}) as answers:
            self._next(answers, time.monotonic() + timeout_s)

    def detach(self) -> None:
        """Hang up, before the machine is copied."""
        if self._port is not None:
            self._port.shutdown(socket.SHUT_RDWR)
            self._port.close()
            self._port = None

    def run(
        self,
        program: str,
        *arguments: str,
        user: str = "ada",
        stdin: bytes | str = b"",
        variables: Mapping[str, str] | None = None,
        directory: str = "",
        timeout_s: float = RUN_S,
        watch: Callable[[str, bytes], None] | None = None,
    ) -> Done:
        """Run a command to its end; without arguments it is a line for the shell.

        Args:
            user: whose rights, home and `systemd --user` it has. Its cgroup is one of the system.
            variables: beside those of a login.
            timeout_s: it is killed after that.
            watch: is told each piece of output, by its stream, as it comes.

        Raises:
            GuestError: the machine did not answer.
        """
        command = [program, *arguments] if arguments else ["/bin/sh", "-c", program]
        header = {
            "op": "run",
            "argv": command,
            "user": user,
            "variables": dict(variables or {}),
            "directory": directory,
            "timeout_s": timeout_s,
        }
        said = {"stdout": b"", "stderr": b""}
        payload = stdin.encode() if isinstance(stdin, str) else stdin
        deadline = time.monotonic() + timeout_s + END_S
        with self._request(header, payload) as answers:
            while True:
                answer, data = self._next(answers, deadline)
                if "exit" in answer:
                    break
                said[answer["stream"]] += data
                if watch is not None:
                    watch(answer["stream"], data)
        stdout, stderr = (said[name].decode(errors="replace") for name in ("stdout", "stderr"))
        return Done(status=answer["exit"], stdout=stdout, stderr=stderr)

    def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        """Make a file of root's in the guest."""
        payload = data.encode() if isinstance(data, str) else data
        with self._request({"op": "write", "path": path, "mode": mode}, payload) as answers:
            while "exit" not in (answer := self._next(answers, time.monotonic() + RUN_S)[0]):
                pass
        if answer["exit"]:
            raise GuestError(f"{path} could not be written")

    @contextlib.contextmanager
    def _request(
        self, header: dict[str, Any], payload: bytes = b""
    ) -> Generator[queue.SimpleQueue[tuple[dict[str, Any], bytes] | None]]:
        if self._port is None:
            raise GuestError("nobody is attached to the guest")
        number = next(self._ids)
        answers = self._answers[number] = queue.SimpleQueue()
        line = json.dumps(header | {"id": number, "size": len(payload)}).encode() + b"\n"
        try:
            with self._sending:
                self._port.sendall(line + payload)
            yield answers
        finally:
            del self._answers[number]

    def _next(
        self, answers: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None], deadline: float
    ) -> tuple[dict[str, Any], bytes]:
        try:
            answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise GuestError(f"no answer in time; console:\n{self.console()[-2000:]}") from None
        if answer is None:
            raise GuestError(f"the machine ended: {self._log()}\n{self.console()[-2000:]}")
        return answer

    def _read(self, port: socket.socket) -> None:
        with port.makefile("rb") as frames, contextlib.suppress(OSError, ValueError):
            for line in frames:
                header: dict[str, Any] = json.loads(line)
                payload = frames.read(header["size"])
                if (answers := self._answers.get(header["id"])) is not None:
                    answers.put((header, payload))
        if self._port is port:
            for answers in list(self._answers.values()):
                answers.put(None)

    def _log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")[-2000:]


@contextlib.contextmanager
def guest(image: Image) -> Generator[Guest]:
    """A clone of the machine that has booted from an image; gone at the end of the block."""
    template = _template(image)
    with tempfile.TemporaryDirectory(prefix="nsm-vm-", dir="/tmp") as name:
        directory = Path(name)
        command = [*_machine(image, directory, template / "memory", shared=False)]
        with _started([*command, "-incoming", "defer"], directory) as machine:
            machine.qmp("migrate-set-capabilities", capabilities=[_IGNORE_SHARED])
            machine.qmp("migrate-incoming", uri=f"exec:cat '{template / 'state'}'")
            machine.wait_migrated()
            machine.qmp("cont")
            machine.attach(QMP_S)
            machine.run(f"date -s @{time.time():.3f} >/dev/null", user="root").check()
            yield machine


_IGNORE_SHARED = {"capability": "x-ignore-shared", "state": True}


def _template(image: Image) -> Path:
    """The directory with memory and state of a machine that has booted; made if it is missing."""
    version = subprocess.run(
        ["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    made_from = digest(version, _machine(image, Path(), Path(), shared=True), UP)
    found = image.directory / f"booted-{made_from}"
    with locked(image.directory / "lock"):
        if not found.exists():
            with replacing(found) as made:
                _boot(image, made)
    return found


def _boot(image: Image, target: Path) -> None:
    say("booting the guest once")
    with tempfile.TemporaryDirectory(prefix="nsm-vm-", dir="/tmp") as name:
        directory = Path(name)
        with _started(_machine(image, directory, target / "memory", shared=True), directory) as up:
            up.qmp("cont")
            up.attach(BOOT_S)
            state = up.run(UP, user="root", timeout_s=BOOT_S)
            if state.stdout.split() != ["running", "active"]:
                failed = up.run("systemctl --failed --no-legend; journalctl -b -n 50", user="root")
                raise GuestError(f"the guest did not come up: {state}\n{failed.stdout}")
            up.detach()
            time.sleep(0.2)  # the guest's end is told by polling
            up.qmp("stop")
            up.qmp("migrate-set-capabilities", capabilities=[_IGNORE_SHARED])
            up.qmp("migrate", uri=f"exec:cat >'{target / 'state'}'")
            up.wait_migrated()


def _machine(image: Image, directory: Path, memory: Path, *, shared: bool) -> list[str]:
    """qemu's command line; that of a clone differs in nothing that the guest could see."""
    backend = f"memory-backend-file,id=ram,size={MEMORY_MB}M,mem-path={memory}"
    drives = {"root": (image.root, "readonly=on"), "disk": (image.disk, "snapshot=on")}
    command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-nographic", "-S"]
    command += ["-machine", "q35,memory-backend=ram,hpet=off", "-accel", "tcg,thread=multi"]
    command += ["-cpu", "max", "-smp", str(PROCESSORS), "-m", f"{MEMORY_MB}M"]
    command += ["-object", f"{backend},share={'on' if shared else 'off'}"]
    command += ["-kernel", str(image.kernel), "-initrd", str(image.initrd)]
    command += ["-append", "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on"]
    command += ["-device", "vmgenid,guid=auto"]
    for name, (path, option) in drives.items():
        drive = f"if=none,id={name},file={path},format=raw,{option},file.locking=off"
        command += ["-drive", drive, "-device", f"virtio-blk-pci,drive={name}"]
    command += ["-device", "virtio-serial-pci"]
    command += ["-chardev", f"socket,id=port,path={directory / 'port'},server=on,wait=off"]
    command += ["-device", "virtserialport,chardev=port,name=nsm.guest"]
    command += [
        "-chardev",
        f"file,id=console,path={directory / 'console'}",
        "-serial",
        "chardev:console",
    ]
    command += ["-chardev", f"socket,id=qmp,path={directory / 'qmp'},server=on,wait=off"]
    return [*command, "-mon", "chardev=qmp,mode=control"]


@contextlib.contextmanager
def _started(command: list[str], directory: Path) -> Generator[Guest]:
    # In a session of its own: Ctrl-C ends the tests, which end it. Who is killed ends it, too:
    # the thread that starts it is the program's main one.
    tied = ["setpriv", "--pdeathsig", "KILL", *command]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            tied, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        with Guest(directory, process) as machine:
            yield machine
    finally:
        process.kill()
        process.wait(END_S)


def _connect(path: Path, process: subprocess.Popen[bytes]) -> socket.socket:
    """Connect to a socket that qemu is about to make."""
    deadline = time.monotonic() + QMP_S
    while True:
        it = socket.socket(socket.AF_UNIX)
        try:
            it.connect(str(path))
        except OSError as error:
            it.close()
            if process.poll() is not None:
                log = (path.parent / "log").read_text(errors="replace")
                raise GuestError(f"qemu ended with {process.returncode}: {log}") from error
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return it


def forget(image: Image) -> None:
    """Remove what is kept of machines that have booted from it."""
    for found in image.directory.glob("booted-*"):
        shutil.rmtree(found)
