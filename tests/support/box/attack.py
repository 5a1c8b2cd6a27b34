"""Runs the probes of `box.probes`, in a box and without one, in the same surroundings.

The surroundings are those of somebody who has much open: a shell with a descriptor to keys and a
key in the kernel's session keyring, other programs in the same process group, servers.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from box import probes
from box.world import COMMAND_TIMEOUT_S, HOME, PROJECT, SECRET, SECRETS, SOCKETS, have_git
from nsmbox.model.plan import PROCESSES, complete_limits
from processes import ending

if TYPE_CHECKING:
    from collections.abc import Generator

    from box.world import World

SOURCE = Path(__file__).with_name("probes.py").read_text()

INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")

IN_BOX = "/run/nsm/python"
"""A Python that every box has."""

OUTSIDE = (
    ".bashrc",
    ".profile",
    ".zshenv",
    ".ssh/authorized_keys",
    ".local/bin/ls",
    ".config/autostart/evil.desktop",
    ".config/systemd/user/evil.service",
    ".gitconfig",
    ".claude/settings.json",
    ".config/nsm/config.toml",
    "other/Makefile",
)
"""Below HOME: what runs later, or says what may run."""

GUARDED = (
    ".git/hooks/pre-commit",
    ".git/config",
    ".vscode/tasks.json",
    ".mcp.json",
    ".cursor/mcp.json",
)
"""In the project."""

ABSENT = (
    ".claude/settings.json",
    ".husky/pre-commit",
    ".devcontainer/devcontainer.json",
    ".envrc",
    ".idea/workspace.xml",
    ".zed/settings.json",
    "opencode.json",
    "mise.toml",
)
"""Not in the project, as it was made."""

# What a shell does before it starts something: `exec 9<~/.aws`, `keyctl session - ...`.
_STARTER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (248, 250), "aarch64": (217, 219)}
add_key, keyctl = map(ctypes.c_long, numbers[os.uname().machine])
if libc.syscall(keyctl, 1, None) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
if libc.syscall(add_key, b"user", sys.argv[1].encode(), b"secret", 6, -3) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
os.dup2(os.open(os.path.expanduser("~/.aws"), os.O_RDONLY), 9)
os.execvp(sys.argv[2], sys.argv[2:])
"""

_BWRAP = 'exec -a bwrap sh -c "echo ready; read line" "$1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Surroundings with everything that probes look for.

    Attributes:
        setting: what the probes are told.
    """

    world: World
    setting: dict[str, Any]

    @property
    def starter(self) -> tuple[str, ...]:
        """Words before a command, with which somebody starts it who has much open."""
        return (sys.executable, "-I", "-c", _STARTER, self.setting["key"])

    def run(self, *before: str, probes: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
        """Run probes in the project.

        Args:
            before: what to put in front of a Python's arguments; empty: no box.
            probes: their names; none: all but those that end whoever started them.

        Returns:
            By name: `got` or `failed`.
        """
        process = self._start(before, probes or tuple(self._names()))
        with ending(process):
            out, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert process.returncode == 0, errors.decode(errors="replace")
        told: dict[str, dict[str, Any]] = json.loads(out)
        return told

    def kills_a_neighbour(self, *before: str) -> bool:
        """Return whether the signal probe ended a program that was started beside the box."""
        with self.victim(process_group=0) as victim:
            process = self._start(before, ("signal-to-the-starters-group",), victim.pid)
            with ending(process):
                process.communicate(timeout=COMMAND_TIMEOUT_S)
            # What was sent has arrived: the victim reads its line only afterwards.
            victim.communicate(b"\n", timeout=COMMAND_TIMEOUT_S)
            return victim.returncode == -signal.SIGUSR1

    @contextmanager
    def victim(self, process_group: int | None = None) -> Generator[subprocess.Popen[bytes]]:
        """A program of Ada's with a secret in its environment; it calls itself bwrap."""
        with ending(
            subprocess.Popen(
                self.world.command("bash", "-c", _BWRAP, "bash", self.setting["victim"]),
                env=self.world.variables | {"VICTIM": f"{SECRET}victim"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=process_group,
            )
        ) as started:
            assert started.stdout is not None
            # Before that it may still be root's, whom a probe cannot reach.
            assert started.stdout.readline() == b"ready\n"
            yield started

    def came_to_be(self) -> list[str]:
        """Files of the host outside of the project that a probe has written to."""
        paths = [self.world.host(f"{HOME}/{path}") for path in OUTSIDE]
        return [str(p) for p in paths if p.exists() and self.setting["mark"] in p.read_text()]

    def guarded_changed(self) -> list[str]:
        """Guarded files of the project that are not what they were."""
        places = {path: self.world.host(PROJECT) / path for path in self.setting["guarded"]}
        return [path for path, at in places.items() if self.setting["mark"] in _text(at)]

    def absent_made(self) -> list[str]:
        """Files of `ABSENT` that a probe has made, with its mark."""
        return [path for path in ABSENT if self.setting["mark"] in _text(self._project / path)]

    @property
    def _project(self) -> Path:
        return self.world.host(PROJECT)

    def _names(self) -> list[str]:
        return [name for name in probes.PROBES if name != "signal-to-the-starters-group"]

    def _start(
        self, before: tuple[str, ...], names: tuple[str, ...], group: int | None = None
    ) -> subprocess.Popen[bytes]:
        python = (*before, "env", IN_BOX) if before else (sys.executable,)
        return subprocess.Popen(
            self.world.command(
                *self.starter,
                *(*python, "-I", "-c", SOURCE, json.dumps(self.setting), ",".join(names)),
            ),
            env=self.world.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=group,
        )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@contextmanager
def prepared(world: World) -> Generator[Attack]:
    """Furnish a world for an attack; what is not in the world is gone at the end of the block."""
    mark = f"probe {secrets.token_hex(8)}\n"
    name = f"nsm-{secrets.token_hex(8)}"
    have_git(world)
    world.write(f"{HOME}/.local/bin/mise", "#!/bin/sh\n", 0o755)
    for path in GUARDED:
        if not (world.host(PROJECT) / path).exists():
            world.write(f"{PROJECT}/{path}", "{}\n")
    shared = Path("/dev/shm") / name  # where a program's shared memory is
    with (
        socket.socket(socket.AF_UNIX) as abstract,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        shared.write_text(SECRET)
        try:
            yield Attack(
                world=world,
                setting={
                    "home": HOME,
                    "home_on_host": str(world.host(HOME)),
                    "secrets": list(SECRETS),
                    "marker": SECRET,
                    "victim": f"victim-{name}",
                    "sockets": {n: p.replace("UID", str(world.uid)) for n, p in SOCKETS.items()},
                    "abstract": name,
                    "port": server.getsockname()[1],
                    "key": name,
                    "shared_memory": str(shared),
                    "outside": list(OUTSIDE),
                    "guarded": list(GUARDED),
                    "room": complete_limits({}).tmp_mb << 20,
                    "inotify": int(INSTANCES.read_text()) // 2,
                    "processes": PROCESSES,
                    "absent": list(ABSENT),
                    "mark": mark,
                },
            )
        finally:
            os.unlink(shared)
