"""Plan of a box: its mounts, its variables, its network, its limits, its command.

Frozen values without I/O. A plan is made from facts about the host by a pure function; people are
shown it and agree to it; `nsmbox.planning.bwrap` and `nsmbox.start.macos` turn it into what starts
it. Paths are text as `os.fsdecode` gives it: a name that is not UTF-8 has surrogates in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, Literal

from nsm import paths
from nsm.dataclass import dataclass, field

BOUNDS: Mapping[str, tuple[int, int]] = {
    "memory_mb": (1, 1024 * 1024),
    "home_mb": (1, 1024 * 1024),
    "tmp_mb": (1, 1024 * 1024),
    "shm_mb": (1, 1024 * 1024),
    "cpu_weight": (1, 10000),
    "processes": (8, 32768),
    "descriptors": (64, 1048576),
}
"""Smallest and largest value of each, as `nsmd.model.settings` has them."""

PROCESSES = 4096
DESCRIPTORS = 65536
CPU_WEIGHT = 100

LEAST_MB = 1024
"""Default size of a file system on a small machine: package managers unpack there."""

INODES_PER_MB = 128
"""Files and directories for each MiB of a file system in memory, as sessions have them."""

LEAST_INODES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxLimits:
    """Limits of one box.

    Attributes:
        memory_mb: memory of its processes together.
        cpu_weight: weight beside sessions and other boxes, where there are control groups.
        descriptors: largest number of descriptors of one process.
    """

    memory_mb: int = 12288
    home_mb: int = 2048
    tmp_mb: int = 2048
    shm_mb: int = 2048
    cpu_weight: int = CPU_WEIGHT
    processes: int = PROCESSES
    descriptors: int = DESCRIPTORS

    @property
    def together(self) -> Mapping[str, int]:
        """Limits of all processes together, which the supervisor enforces."""
        return {
            "memory_mb": self.memory_mb,
            "files_mb": self.home_mb + 2 * self.tmp_mb + self.shm_mb,
            "processes": self.processes,
            "cpu_weight": self.cpu_weight,
        }


def complete_limits(given: Mapping[str, int | None], machine_mb: int | None = None) -> BoxLimits:
    """Complete the limits that are given.

    An agent with builds, language servers and tests must work, and the machine beside it: so three
    quarters of the machine's memory are the programs', and an eighth is each file system's.

    Args:
        given: by name; None for the default.
    """
    machine_mb = _machine_mb() if machine_mb is None else machine_mb
    files_mb = max(LEAST_MB, machine_mb // 8)
    defaults = {
        "memory_mb": max(LEAST_MB, machine_mb * 3 // 4),
        "home_mb": files_mb,
        "tmp_mb": files_mb,
        "shm_mb": files_mb,
    }
    return BoxLimits(
        **defaults | {name: value for name, value in given.items() if value is not None}
    )


def _machine_mb() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


MountKind = Literal[
    "bind", "ro-bind", "tmpfs", "dir", "proc", "dev", "symlink", "file", "ro-file", "mask", "link"
]
NetworkMode = Literal["host", "none", "allow"]
"""Modes of a network, as agreements on disk spell them."""

MODES: dict[str, NetworkMode] = {"full": "host", "off": "none", "allow": "allow"}
"""Modes by the words that people use."""


RUN_DIRECTORY = "/run/nsm"
"""In a box: what is nsm's own there."""

TOOLS_DIRECTORY = paths.BOX_PROGRAMS
"""In a box: programs by the names under which the caller finds them; first on PATH."""

LINKS_DIRECTORY = f"{RUN_DIRECTORY}/tools"
"""In a box: links to the system's programs, but those that no box runs; next on PATH."""

POLICY_FILE = f"{RUN_DIRECTORY}/policy.json"
"""In a box: its rules as JSON, as sessions have theirs."""

RULES_FILE = f"{RUN_DIRECTORY}/rules.md"
"""In a box: its rules in a few lines, for agents."""

CERTIFICATES_FILE = f"{RUN_DIRECTORY}/certificates.pem"
"""In a box with secrets: certificates that its programs trust."""

SOCKET_DIRECTORY = f"{RUN_DIRECTORY}/box"
"""In a box: the directory of its own sockets, made by the supervisor."""

CONTROL_SOCKET = f"{SOCKET_DIRECTORY}/control.sock"
"""In a box: `NSM_SOCKET`. Whoever connects may run code in the box's own scope, and no more."""

PROXY_SOCKET = f"{SOCKET_DIRECTORY}/proxy.sock"
"""In a box whose network is a list: takes the listening socket of its proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A place in the box. Those that come later lie over those that came before.

    Attributes:
        kind: `bind` shows a host path that can be changed, `ro-bind` one that cannot; `tmpfs` is
            memory of the box's own; `dir` an empty directory in it; `file` and `ro-file` are files
            made for the box, that can be changed, or not; `mask` hides what lies there on the
            host behind something empty (see `masks_file`); `link` keeps a symbolic link of the
            host's as it is (see `nsmbox.start.confinement`).
        target: absolute, in the box.
        source: on the host, of binds; what a `symlink` or `link` says; else empty.
        data: content of `file` and `ro-file`.
        mode: permission bits of `tmpfs`, `dir` and files.
        size_mb: size of a `tmpfs`, and of the `shm` of a `dev`; 0 for the kernel's default.
        masks_file: a `mask` is over a file, else over a directory.
        linkless: the source lies where boxes can write, and is opened without following any
            symbolic link: one that has come there since it was looked at must not have the box
            show something else (see `nsmbox.protection.mount_sources`).
        made: the source is made at launch where it is not there.
        stand_in: in the place of something that is not there, and that the box must not make; a
            `linkless` file has no source, and its target is looked at instead.
        why: in a few words, for people: what it is there for.
    """

    kind: MountKind
    target: str
    source: str = ""
    data: bytes = b""
    mode: int = 0o755
    size_mb: int = 0
    masks_file: bool = False
    linkless: bool = False
    made: bool = False
    stand_in: bool = False
    why: str = ""

    @property
    def kept(self) -> bool:
        """True if changes there stay after the box has ended."""
        return self.kind == "bind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable of the box.

    Attributes:
        inherited: its value is that of the caller's variable of the same name, which is how a
            command for people spells it where it is `secret`.
        secret: the value is not shown.
    """

    name: str
    value: str
    inherited: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Hosts that a box may reach.

    Attributes:
        mode: all that the host reaches; nothing; or hosts through the supervisor's proxy.
        allow: with `allow`, patterns of hosts as in docs/how-to/network.md.
    """

    mode: NetworkMode = "host"
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A box, whole.

    Attributes:
        command: with the absolute path, in the box, of what runs; its arguments.
        start: a directory in the working directory in which the command begins; empty for that
            itself.
        sockets: the supervisor makes sockets for it. Their directory on the host is known only at
            launch, and is shown last, at `SOCKET_DIRECTORY`.
        starter: how many words of the command are nsm's own, before what was asked for.
        notes: sentences for people: what this plan does not do that they might think.
        programs: names of the bridge's programs that the box may start on the host; sorted.
        git_unusable: the box does not show the repository of the working directory.
    """

    profile: str
    mounts: tuple[Mount, ...]
    variables: tuple[Variable, ...]
    network: Network
    command: tuple[str, ...]
    directory: str
    start: str = ""
    sockets: bool = True
    starter: int = 0
    notes: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    limits: BoxLimits = field(default_factory=BoxLimits)
    secrets: tuple[str, ...] = ()
    git_unusable: bool = False

    @property
    def asked(self) -> tuple[str, ...]:
        """The command without what starts it."""
        return self.command[self.starter :]

    @property
    def writable(self) -> tuple[str, ...]:
        """Paths of the host that can be changed in the box, in whole or in part; sorted. What lies
        in one of them is left out."""
        found: list[str] = []
        for path in sorted(mount.source for mount in self.mounts if mount.kept):
            if not any(path == other or path.startswith(f"{other}/") for other in found):
                found.append(path)
        return tuple(found)

    @property
    def cannot_make(self) -> list[str]:
        """Paths at which the box has stand-ins."""
        return [mount.target for mount in self.mounts if mount.stand_in]

    @property
    def inodes(self) -> dict[str, int]:
        """Largest number of files and directories of each file system in memory, by its path."""
        found: dict[str, int] = {}
        for mount in self.mounts:
            covered = mount.target.rstrip("/")
            found = {
                path: most
                for path, most in found.items()
                if mount.kind == "dir" or not f"{path}/".startswith(f"{covered}/")
            }
            if mount.size_mb:
                path = f"{mount.target}/shm" if mount.kind == "dev" else mount.target
                found[path] = max(LEAST_INODES, mount.size_mb * INODES_PER_MB)
        return found

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of the plan that a person agrees to, in the form of JSON.

        Values of variables, contents of files and the command's arguments are left out: they
        change from one start to the next and give the box nothing more. So are limits: how much
        the box may use is no question of trust.
        """
        return {
            "profile": self.profile,
            "mounts": [[m.kind, m.target, _agreed(m), m.mode] for m in self.mounts],
            "variables": [v.name for v in self.variables],
            "network": [self.network.mode, *self.network.allow],
            "program": self.command[0],
            "directory": self.directory,
            "sockets": self.sockets,
            # Left out where there are none: what was agreed to before there was a bridge holds.
            **({"programs": list(self.programs)} if self.programs else {}),
            **({"secrets": list(self.secrets)} if self.secrets else {}),
        }

    @property
    def digest(self) -> str:
        """Tell plans apart that a person would want to be asked about: 64 hex digits."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


def _agreed(mount: Mount) -> str:
    """Whose source changes with each package that is installed is the same to people."""
    return "" if mount.target == LINKS_DIRECTORY else mount.source


class BoxError(Exception):
    """A box cannot be; for people. Raised wherever that is found, printed by the program
    (`nsmbox.cli.common.guarded`).

    Args:
        exit_code: exit code of the program: 2 for wrong usage, 127 for a missing command, else 1.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code
