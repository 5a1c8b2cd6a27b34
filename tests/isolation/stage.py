"""What is on the host for probes to reach."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from nsmd.values import ProjectMount
from realjail import SIZES, mount_of, open_directory

CANARY_VARIABLE = "NSM_TEST_CANARY"
CANARY = "canary-5f1c0ad7"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is on the host for probes to reach.

    Attributes:
        directory: a host directory that no jail is to show; `secret` lies in it.
        status: a file that looks like the status of a process that may gain privileges.
        project: shown at /project; the jails' user may write to it, on the host.
        socket_path, abstract_name, tcp_port: of listeners on the host.
        host_pid: a process whose arguments hold the canary.
    """

    directory: str
    secret: str
    status: str
    project: ProjectMount
    socket_path: str
    abstract_name: str
    tcp_port: int
    host_pid: int

    def facts(self) -> dict[str, object]:
        """What probes are told."""
        return {
            **dataclasses.asdict(self),
            "canary": CANARY,
            "sizes": {
                "/workspace": SIZES.workspace_mb << 20,
                "/tmp": SIZES.tmp_mb << 20,
                "/dev/shm": SIZES.shm_mb << 20,
            },
            "namespaces": {
                name: os.readlink(f"/proc/self/ns/{name}")
                for name in ("user", "pid", "ipc", "net", "mnt", "uts")
            },
        }


@contextmanager
def open_stage() -> Generator[Stage, None, None]:
    """Put on the host what probes try to reach."""
    with ExitStack() as stack:
        # Not in /tmp, which a fork covers with its own: a jail that shows it would be no weaker.
        outside = stack.enter_context(open_directory("/var/tmp"))
        (outside / "secret").write_text(CANARY)
        (outside / "status").write_text("Name:\tpython3\nNoNewPrivs:\t0\n")
        project = outside / "project"
        project.mkdir()
        (project / "data").write_text("data")
        # The mount, and nothing else, is what keeps the jail from writing.
        project.chmod(0o777)
        (project / "data").chmod(0o666)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        path_socket = stack.enter_context(socket.socket(socket.AF_UNIX))
        path_socket.bind(str(outside / "socket"))
        path_socket.listen()
        os.chmod(outside / "socket", 0o777)
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
            host_pid=process.pid,
        )
