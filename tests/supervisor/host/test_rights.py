"""Rights that brokers have left: attacks that run inside of them once they gave up theirs.

Each attack succeeds in a broker that keeps its rights.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from agent_process import short_directory
from nsm.jail import landlock
from nsmd.host.child_processes import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Generator

BROKER = """
import sys; sys.path += sys.argv.pop(1).split(':')
import ctypes, fcntl, json, mmap, os, resource, signal, socket
import {module} as broker
from nsm.jail import landlock
home, tcp, unix, abstract, target = json.loads(sys.argv.pop(1))
libc = ctypes.CDLL(None, use_errno=True)

def connects(family, address):
    with socket.socket(family) as one:
        one.connect(address)
def reads(path):
    with open(path, 'rb', buffering=0) as file:
        return file
def starts():
    os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', ':'], {{}}), 0)
def becomes():
    try:
        os.execv('/is/not/there', ['x'])
    except FileNotFoundError:
        return  # nothing else kept it from that
def forks():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
def traces():
    if libc.ptrace(0x4206, target, None, None) < 0:  # PTRACE_SEIZE
        raise OSError
def opens_process():
    pidfd = os.pidfd_open(target)
    signal.pidfd_send_signal(pidfd, 0)
    os.close(pidfd)

WAYS = {{
    'read a key': lambda: reads(home + '/.ssh/id'),
    'read memory of another': lambda: reads(f'/proc/{{target}}/mem'),
    'list keys': lambda: os.listdir(home + '/.ssh'),
    'write a file': lambda: open(home + '/.profile', 'w').close(),
    'change a mode': lambda: os.chmod(home, 0o755),
    'remove a file': lambda: os.unlink(home + '/.profile'),
    'start a program': starts,
    'become a program': becomes,
    'fork': forks,
    'connect to the loopback': lambda: connects(socket.AF_INET, ('127.0.0.1', tcp)),
    'make a socket for datagrams': lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    'connect to a path': lambda: connects(socket.AF_UNIX, unix),
    'connect to a name': lambda: connects(socket.AF_UNIX, abstract),
    'kill': lambda: os.kill(target, 0),
    'kill by descriptor': opens_process,
    'have signals sent': lambda: fcntl.fcntl(0, fcntl.F_SETOWN, target),
    'trace': traces,
    'set limits': lambda: resource.prlimit(target, resource.RLIMIT_CORE, (0, 0)),
    'run code of its own': lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_EXEC).close(),
}}
def reached():
    for name, way in WAYS.items():
        try:
            way()
        except OSError:
            continue
        yield name
real = broker.give_up_rights
def give_up_rights(**options):
    if {kind!r} == 'filter':
        landlock.version = lambda: 0
    if {kind!r} != 'free':
        real(**options)
    print(json.dumps([*reached()]), flush=True)
if {kind!r} == 'ways':
    print(json.dumps([*WAYS]))
else:
    broker.give_up_rights = give_up_rights
    broker.main()
"""
"""A broker that prints which attacks succeed once it gave up its rights; or all that there are."""

TARGET = (
    "import ctypes; ctypes.CDLL(None).prctl(0x59616D61, -1, 0, 0, 0); print(flush=True); input()"
)
"""A process that everybody of its user may trace, whatever Yama says."""


class Surroundings(NamedTuple):
    """Things near a broker that it must not reach: facts for `BROKER`."""

    home: str
    tcp: int
    unix: str
    abstract: str
    target: int


@pytest.fixture
def near(tmp_path: Path) -> Generator[Surroundings]:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id").write_text("a key")
    with ExitStack() as stack:
        folder = stack.enter_context(short_directory())
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        names = [str(folder / "socket"), f"\0nsm-test-{os.getpid()}"]
        for name in names:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(name)
            listener.listen()
        target = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        assert target.stdout is not None
        target.stdout.readline()
        yield Surroundings(str(tmp_path), tcp.getsockname()[1], names[0], names[1], target.pid)
        target.kill()


def reached(module: str, kind: str, near: Surroundings) -> list[str]:
    """Attacks that succeed in a broker: as it `is`, `free`, or with its `filter` only."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = BROKER.format(module=module, kind=kind)
    with ours, its:
        broker = subprocess.Popen(
            [sys.executable, "-I", "-c", program, PACKAGES, json.dumps(near)],
            stdin=its.fileno(),
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        with broker:
            its.close()
            assert broker.stdout is not None
            if module == HELPER and kind != "ways":
                rules = [f"GET https://{name}.example/*" for name in ("a", "b")]
                state = os.memfd_create("state")
                begin = {"op": "begin", "secrets": [], "request_rules": rules}
                socket.send_fds(ours, [json.dumps(begin).encode()], [state])
                os.close(state)
            line = broker.stdout.readline()
            ours.close()
    assert broker.returncode == 0, broker.returncode
    found: list[str] = json.loads(line)
    return found


RELAY, HELPER = "nsmd.ports.relay", "nsmd.network.secrets.helper"
BROKERS = pytest.mark.parametrize("module", [RELAY, HELPER, "nsmd.network.broker"])

needs_landlock = pytest.mark.skipif(
    not landlock.version(), reason="not here: this kernel has no Landlock (Linux 5.13)"
)


@needs_landlock
@BROKERS
def test_a_broker_has_nothing_but_its_descriptors(module: str, near: Surroundings) -> None:
    assert reached(module, "is", near) == []


@pytest.mark.slow
@BROKERS
def test_each_attack_succeeds_in_one_that_keeps_its_rights(module: str, near: Surroundings) -> None:
    assert reached(module, "free", near) == reached(module, "ways", near)


@pytest.mark.slow
@BROKERS
def test_the_filter_alone_leaves_a_helper_the_reading_of_files(
    module: str, near: Surroundings
) -> None:
    """Kernels without Landlock; `ssl` has no way to be given a certificate but by a path."""
    left = ["read a key", "read memory of another"] if module == HELPER else []
    assert reached(module, "filter", near) == left
