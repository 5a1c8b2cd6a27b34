"""Targets on the host for probes to reach."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from nsm.jail.seccomp import syscalls
from nsmd.jail.host import scan_host
from nsmd.model.policy import limit_variables
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import ProjectMount
from realjail import SIZES, SYSTEM_PATH, mount_of, open_directory

CANARY_VARIABLE = "NSM_TEST_CANARY"
CANARY = "canary-5f1c0ad7"
LIMIT_VARIABLES = tuple(limit_variables(1024))
"""Names of those that tell programs of a session's limits."""

HIDDEN_VARIABLE = "NSM_TEST_HIDDEN"
HIDDEN = "hidden-c2b84e91d0774f3a"
"""Probes know its digest, so that they do not find their own needle."""

VICTIMS = ("attributes", "flags", "inode", "mapped", "one", "other", "read", "truncated")
"""Files of the project, each for one probe to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Targets on the host for probes to reach.

    Attributes:
        directory: a host directory that no jail is to show; `secret` lies in it.
        status: a file that looks like the status of a process that may gain privileges.
        project: shown at /project; the jails' user may write to it, on the host.
        socket_path, abstract_name, tcp_port, udp_port: of listeners on the host.
        host_pid: a process whose arguments hold the canary.
        runtime: like a supervisor's directory: a socket, settings, a transcript.
        temporary: a name that is there in the host's /tmp and /dev/shm.
        device: whether there is a device node in the project.
        key: description of a key that the jails' user has in the kernel; empty where it has none.
    """

    directory: str
    secret: str
    status: str
    project: ProjectMount
    socket_path: str
    abstract_name: str
    tcp_port: int
    udp_port: int
    host_pid: int
    runtime: str
    temporary: str
    device: bool
    key: str

    def facts(self) -> dict[str, object]:
        """Facts that probes are told."""
        return {
            **dataclasses.asdict(self),
            "canary": CANARY,
            "etc": scan_host().etc,
            "limit_variables": LIMIT_VARIABLES,
            "hidden": hashlib.sha256(HIDDEN.encode()).hexdigest(),
            "sizes": {
                "/workspace": SIZES.workspace_mb << 20,
                "/tmp": SIZES.tmp_mb << 20,
                "/dev/shm": SIZES.shm_mb << 20,
            },
            "namespaces": {
                name: os.readlink(f"/proc/self/ns/{name}")
                for name in ("user", "pid", "ipc", "net", "mnt", "uts", "cgroup")
            },
        }


_KEY_HOLDER = """
import ctypes, sys
add_key, keyctl, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
USER_KEYRING, UNLINK = -4, 9
syscall = ctypes.CDLL(None).syscall
key = syscall(add_key, b"user", name, b"x", 1, USER_KEYRING)
print(key > 0, flush=True)
sys.stdin.read()
syscall(keyctl, UNLINK, key, USER_KEYRING)
"""


@contextmanager
def _open_key(name: str) -> Generator[str, None, None]:
    """Give the jails' user a key; its description, or nothing where the kernel has no keys."""
    numbers = {"x86_64": syscalls.X86_64, "aarch64": syscalls.AARCH64}.get(platform.machine())
    if numbers is None:
        yield ""
        return
    user = DEFAULT_JAIL_UID if os.geteuid() == 0 else None
    with subprocess.Popen(
        [
            *("/usr/bin/env", "python3", "-c", _KEY_HOLDER),
            *(str(numbers["add_key"]), str(numbers["keyctl"]), name),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": SYSTEM_PATH},
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        yield name if holder.stdout.readline() == b"True\n" else ""
        holder.stdin.close()


_WAITING = {
    # pause(2), over and over.
    "x86_64": (62, bytes.fromhex("b822000000 0f05 ebf7")),
    # ppoll(2) of nothing, without end: there is no pause.
    "aarch64": (
        183,
        bytes.fromhex("000080d2 010080d2 020080d2 030080d2 040080d2 280980d2 010000d4 f9ffff17"),
    ),
}
"""Machine code, after the number that ELF has for the machine."""


def _write_program(path: Path) -> None:
    """A program that waits, and needs no loader, which jails that Nix has built have elsewhere."""
    known = _WAITING.get(platform.machine())
    if known is None:
        shutil.copy("/usr/bin/sleep", path)  # for jails that show /usr
        return
    machine, code = known
    base, headers = 0x400000, 64 + 56
    size = headers + len(code)
    # elf(5): a header, and one segment that is the whole file, to be read and executed.
    elf = struct.pack(
        *("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, machine, 1, base + headers),
        *(64, 0, 0, 64, 56, 1, 0, 0, 0),
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    path.write_bytes(elf + segment + code)


def _fill_project(project: Path, secret: Path) -> bool:
    """Make a project; whether there is a device node in it."""
    for folder in (project, project / "victims", project / ".git", project / ".git" / "hooks"):
        folder.mkdir()
    (project / "data").write_text("data")
    (project / ".git" / "config").write_text("[core]\n\tbare = false\n")
    (project / "link").symlink_to(secret)
    _write_program(project / "program")
    for name in VICTIMS:
        (project / "victims" / name).write_text("victim")
    # Read long ago, so that the next time is written down.
    os.utime(project / "victims" / "read", (1, 2))
    # The mount, and nothing else, is what keeps the jail from writing.
    for path in (project, *project.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777)
            if os.geteuid() == 0:
                os.chown(path, DEFAULT_JAIL_UID, DEFAULT_JAIL_UID)
    try:
        os.mknod(project / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.chmod(project / "device", 0o666)
        # Some containers let it be made, and not be used.
        os.close(os.open(project / "device", os.O_RDWR))
    except OSError:
        return False
    return True


@contextmanager
def _open_runtime(directory: Path) -> Generator[str]:
    directory.mkdir()
    (directory / "config.toml").write_text(f'[environments.x.env]\nTOKEN = "{CANARY}"\n')
    (directory / "transcripts").mkdir()
    (directory / "transcripts" / "1.log").write_text(CANARY)
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(directory / "control.sock"))
        control.listen()
        (directory / "control.sock").chmod(0o777)
        yield str(directory)


@contextmanager
def _open_temporary() -> Generator[str]:
    with tempfile.NamedTemporaryFile(prefix="nsm-test-", dir="/tmp") as one:
        name = os.path.basename(one.name)
        other = Path("/dev/shm") / name
        other.touch()
        try:
            yield name
        finally:
            other.unlink()


@contextmanager
def open_stage() -> Generator[Stage, None, None]:
    """Put on the host what probes try to reach."""
    with ExitStack() as stack:
        # Not in /tmp, which a fork covers with its own: a jail that shows it would be no weaker.
        outside = stack.enter_context(open_directory("/var/tmp"))
        (outside / "secret").write_text(CANARY)
        (outside / "status").write_text("Name:\tpython3\nNoNewPrivs:\t0\n")
        (outside / "status").chmod(0o666)
        project = outside / "project"
        device = _fill_project(project, outside / "secret")
        (outside / "tmp").mkdir()
        (outside / "project-other").mkdir()
        (outside / "project-other" / "secret").write_text(CANARY)
        shutil.copy("/usr/bin/sleep", outside / "program")
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        (outside / "symbols").write_text("ffffffff81000000 T _text\n")
        (outside / "resolv.conf").write_text("nameserver 192.0.2.53\n")
        path_socket = stack.enter_context(socket.socket(socket.AF_UNIX))
        path_socket.bind(str(outside / "socket"))
        path_socket.listen()
        os.chmod(outside / "socket", 0o777)
        runtime = stack.enter_context(_open_runtime(outside / "runtime"))
        temporary = stack.enter_context(_open_temporary())
        (outside / "tmp" / temporary).touch()
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract_name = outside.name
        abstract.bind(f"\0{abstract_name}")
        abstract.listen()
        process = stack.enter_context(
            subprocess.Popen(
                ["/bin/sh", "-c", "read -r _", CANARY],
                stdin=subprocess.PIPE,
                env={CANARY_VARIABLE: CANARY},
            )
        )
        yield Stage(
            directory=str(outside),
            secret=str(outside / "secret"),
            status=str(outside / "status"),
            project=mount_of(project),
            socket_path=str(outside / "socket"),
            abstract_name=abstract_name,
            tcp_port=tcp.getsockname()[1],
            udp_port=udp.getsockname()[1],
            host_pid=process.pid,
            runtime=runtime,
            temporary=temporary,
            device=device,
            key=stack.enter_context(_open_key(outside.name)),
        )
