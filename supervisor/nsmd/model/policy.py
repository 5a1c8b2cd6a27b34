"""Policy of one session: all that it may see, change, reach and use; a frozen value, made by a pure
function.

Each session has exactly one. Its jail is made from the same facts. Code reads it in the jail
(`POLICY_PATH`), people by `nsm inspect`; notes about denials take the rule from here.
`tests/policy/test_in_jails.py` compares all of it with each kind of jail.

Variables tell programs how many threads and how much memory a session has. By default they look at
the machine: with 64 processors and 512 MiB, the buffers of 64 threads or a heap of a quarter of the
machine's memory end a session.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from posixpath import dirname
from typing import Any, Literal, cast

from nsm.dataclass import dataclass, field
from nsm.jail.proxyvariables import PROXY_PORT, WITHOUT_NETWORK, with_port
from nsm.jail.proxyvariables import java_options as with_proxy
from nsmd.host.paths import is_within
from nsmd.model.values import (
    IMAGE_PLACE,
    NO_NETWORK,
    Enforcement,
    Enforcer,
    Environment,
    JailSizes,
    JailSpec,
    NetworkRule,
    ReadOnlyBind,
    SessionLimits,
)
from sandbox.limits import FILE_BYTES, REPLY_BYTES

THREAD_MB = 128
"""Memory of a session for each thread of one program: buffers of BLAS take some 30 MiB, a stack 8,
and a program has more than its threads."""

_THREADS = (
    "GOMAXPROCS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHON_CPU_COUNT",  # Python 3.13 and newer; `multiprocessing.Pool()` takes it
    "RAYON_NUM_THREADS",
)


JAVA = "JAVA_TOOL_OPTIONS"
"""Variable with the options of every JVM."""


def limit_variables(memory_mb: int, processors: int | None = None) -> dict[str, str]:
    """Make the variables for a session."""
    processors = processors or len(os.sched_getaffinity(0))
    threads = max(1, min(processors, memory_mb // THREAD_MB))
    return {
        **dict.fromkeys(_THREADS, str(threads)),
        JAVA: java_options(memory_mb, threads),
        # Node's own memory is a few dozen MiB beside the heap.
        "NODE_OPTIONS": f"--max-old-space-size={memory_mb * 3 // 4}",
    }


def java_options(memory_mb: int, threads: int) -> str:
    """Options of every JVM. An old one ignores those that it does not know."""
    return (
        f"-XX:+IgnoreUnrecognizedVMOptions -XX:ActiveProcessorCount={threads} "
        f"-XX:MaxRAM={memory_mb}m -XX:MaxRAMPercentage=60"
    )


VERSION = 1
"""Version of the JSON: under one version, fields keep their meaning, and more may be added."""

POLICY_PATH = "/run/nsm/policy.json"
"""Path at which code finds the policy of its session. Nothing in the jail can change it."""

JAIL_UID = 1000
"""User and group in every jail; on the host they are those of the jails' user."""

WORKSPACE = "/workspace"

JAIL_VARIABLES = ("HOME", "LANG", "LOGNAME", "PATH", "PWD", "TERM", "TMPDIR", "USER")
"""Names of the variables that every jail has, in any environment."""

DEVICES = ("full", "null", "ptmx", "random", "tty", "urandom", "zero")
"""Devices below /dev of every jail. Terminals are made below /dev/pts on demand."""

_PLAIN_DEVICES = tuple(f"/dev/{name}" for name in DEVICES)
"""Their paths, which all sessions without other devices share: each would take 500 bytes."""

INODES_PER_MB = 128
"""Files and directories per MiB, the same number as in `sandbox.template.mounts`."""

MOST_SIBLINGS = 8
"""Largest number of directories to list beside each other; more become one line with
their number.
"""

_WITHOUT_AGENT = Enforcement(memory="rlimit", processes="none", cpu="none")

JailKind = Literal["cold", "forked", "artifact", "artifact-forked"]
"""Kind of a session's jail: of its own, made by bwrap, or within its template's; with the host's
programs, or with those of an artifact.
"""

MountKind = Literal["bind", "binds", "tmpfs", "overlay", "proc", "dev", "file"]
MountMode = Literal["ro", "rw", "cow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MountRule:
    """A path in the jail, and what code may do there.

    Attributes:
        kind: `bind` shows a host directory or file, `binds` some entries of one; `tmpfs` is memory
            of the session's own; `file` was made for the jail; `proc` and `dev` are these file
            systems.
        inodes: largest number of files and directories; None without a bound.
        entries: with `binds`, their number; None if an artifact decides.
        source: path on the host, for people only: code must not know it.
        size_mb: largest size; None if that has no meaning.
    """

    path: str
    kind: MountKind
    mode: MountMode = "ro"
    size_mb: int | None = None
    inodes: int | None = None
    entries: int | None = None
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRules:
    """Resource limits of a session.

    Attributes:
        process_memory_mb: MiB of one process (RLIMIT_DATA): more than `memory_mb` where programs
            reserve addresses that they do not fill; 0 if a supervisor before 0.3.0 made it.
        cpu_weight, cpu_by: weight against other sessions (cgroups(7)), None if the kernel sees only
            their processes; and how it is enforced.
        output_bytes: size of each stream in a result, unless the client asks for less; a file has
            the whole.
    """

    memory_mb: int
    memory_by: Enforcer
    process_memory_mb: int = 0
    processes: int
    processes_by: Enforcer
    descriptors: int
    cpu_weight: int | None
    cpu_by: Enforcer
    timeout_s: float
    output_bytes: int = REPLY_BYTES
    output_file_bytes: int = FILE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Rights that the kernel gives code."""

    uid: int = JAIL_UID
    gid: int = JAIL_UID
    capabilities: tuple[str, ...] = ()
    no_new_privs: bool = True
    system_call_filter: bool = True
    nested_namespaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All rules of one session.

    Attributes:
        complete: False if an older artifact decides about its jail; the supervisor then knows only
            what it requests.
        network: rule at the session's start; the user may change it later (`nsm net`).
        variables: NAMES of the environment variables, sorted; values may be secrets. Those of
            secrets and trusted certificates come later, with the proxy.
    """

    kind: JailKind
    complete: bool = True
    mounts: tuple[MountRule, ...]
    network: NetworkRule = NO_NETWORK
    variables: tuple[str, ...]
    devices: tuple[str, ...] = _PLAIN_DEVICES
    limits: LimitRules
    rights: Rights = Rights()

    @property
    def writable(self) -> tuple[str, ...]:
        """Paths below which code can change something, be it in an overlay."""
        return tuple(m.path for m in self.mounts if m.mode != "ro" and m.kind != "proc")

    def mount_at(self, path: str) -> MountRule | None:
        """The innermost mount that contains a path of the jail; None if unknown."""
        found = [mount for mount in self.mounts if is_within(path, mount.path)]
        return max(found, key=lambda mount: len(mount.path), default=None)

    def as_json(self, *, sources: bool = False) -> dict[str, Any]:
        """The policy as plain values."""
        return {
            "version": VERSION,
            "kind": self.kind,
            "complete": self.complete,
            "rights": _fields(self.rights),
            "network": {
                "mode": self.network.mode,
                "allow": list(self.network.allow),
                "proxy": self.network.mode == "allow",
            },
            "limits": _fields(self.limits),
            "variables": list(self.variables),
            "devices": list(self.devices),
            "mounts": [_as_row(mount, sources=sources) for mount in self.mounts],
        }

    def as_text(self) -> str:
        """Content of `POLICY_PATH`: JSON that people can read, with one line for each mount."""
        *rows, (_, mounts) = self.as_json().items()
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in rows]
        entries = ",\n".join(f"    {json.dumps(mount)}" for mount in mounts)
        return "\n".join(["{", *lines, f'  "mounts": [\n{entries}\n  ]', "}\n"])


def _fields(value: LimitRules | Rights) -> dict[str, Any]:
    """Fields of a flat value, for JSON."""
    found: dict[str, Any] = {name: getattr(value, name) for name in value.__slots__}
    return {
        name: list(cast("tuple[str, ...]", each)) if isinstance(each, tuple) else each
        for name, each in found.items()
    }


def policy_of(
    spec: JailSpec,
    limits: SessionLimits,
    kind: JailKind,
    *,
    shown: Sequence[MountRule] = (),
    filtered: bool = True,
) -> Policy:
    """Make the policy of sessions with a specification.

    Args:
        shown: mounts of every jail of that kind, besides its own file systems.
    """
    environment = spec.environment
    older = environment.artifact is not None and environment.artifact.schema == 0
    mounts: list[MountRule] = []
    if not older:
        mounts += [*_own(spec.sizes, kind), *shown, *_grouped(environment.binds)]
        if (image := environment.image) is not None and image.writable:
            mounts = [*_writable_root(mounts, image.directory, spec.sizes.overlay_mb)]
    if spec.project is not None:
        project = spec.project
        mounts = [mount for mount in mounts if not is_within(mount.path, project.mount_point)]
        copied = project.mode == "overlay"
        mounts.append(
            MountRule(
                path=project.mount_point,
                kind="overlay" if copied else "bind",
                mode="cow" if copied else "ro",
                size_mb=spec.sizes.overlay_mb if copied else None,
                inodes=spec.sizes.overlay_mb * INODES_PER_MB if copied else None,
                source=project.path,
            )
        )
        if (git := project.git) is not None and not (environment.image or environment.artifact):
            mounts.append(MountRule(path=git.mount_point, kind="bind", source=git.path))
    enforcement = limits.enforcement
    # a jail for each execution, without agent: `nsmd.jail.run_only`
    if not environment.keeps_state:
        enforcement = _WITHOUT_AGENT
    elif older and enforcement.processes == "rlimit":  # `nsmd.jail.starting.with_limits`
        enforcement = enforcement._replace(processes="none")
    return Policy(
        kind=kind,
        complete=not older,
        mounts=tuple(sorted(mounts, key=lambda mount: mount.path)),
        network=spec.network,
        variables=variable_names(environment, spec.network),
        devices=_devices(environment),
        limits=LimitRules(
            memory_mb=environment.memory_mb,
            memory_by=enforcement.memory,
            process_memory_mb=environment.memory_mb + environment.reserved_mb,
            processes=limits.processes,
            processes_by=enforcement.processes,
            descriptors=limits.descriptors,
            cpu_weight=environment.cpu_weight if enforcement.cpu == "cgroup" else None,
            cpu_by=enforcement.cpu,
            timeout_s=environment.timeout_s,
        ),
        rights=Rights(system_call_filter=filtered and not older),
    )


def _devices(environment: Environment) -> tuple[str, ...]:
    if environment.shown_devices is None:
        return _PLAIN_DEVICES
    return tuple(
        sorted([*_PLAIN_DEVICES, *(node.path for node in environment.shown_devices.nodes)])
    )


def jail_variables(environment: Environment, network: NetworkRule) -> tuple[tuple[str, str], ...]:
    """Variables of code in a jail, in addition to those of every jail, or in their place."""
    artifact = environment.artifact
    if network.mode == "off" and artifact is not None and "variables" not in artifact.takes:
        return environment.variables  # the rest is a convenience, and it cannot set any
    limits = limit_variables(environment.memory_mb)
    if network.mode == "allow":
        limits[JAVA] = with_proxy(limits[JAVA], str(PROXY_PORT))
    return (*limits.items(), *_network_variables(network), *environment.variables)


def _network_variables(network: NetworkRule) -> tuple[tuple[str, str], ...]:
    if network.mode == "off":
        return WITHOUT_NETWORK
    return () if network.mode == "full" else tuple(with_port(PROXY_PORT).items())


def variable_names(environment: Environment, network: NetworkRule) -> tuple[str, ...]:
    """Names of all variables of code in a jail, sorted."""
    more = dict(jail_variables(environment, network))
    return _sorted_once(frozenset({*JAIL_VARIABLES, *more}))


@lru_cache(maxsize=32)
def _sorted_once(names: frozenset[str]) -> tuple[str, ...]:
    """The names in one object, which all sessions that have them share."""
    return tuple(sorted(names))


def session_file_systems(sizes: JailSizes) -> Sequence[tuple[str, int, str]]:
    """File systems of a session's own: path, MiB, mode."""
    return (
        # bwrap's --dev leaves /dev/shm on its own unbounded tmpfs.
        ("/dev/shm", sizes.shm_mb, "1777"),  # noqa: S108 - in the jail
        ("/tmp", sizes.tmp_mb, "1777"),  # noqa: S108 - in the jail
        (WORKSPACE, sizes.workspace_mb, "0755"),
    )


def _own(sizes: JailSizes, kind: JailKind) -> Iterator[MountRule]:
    yield MountRule(path="/", kind="tmpfs")
    yield MountRule(path="/dev", kind="dev")
    yield MountRule(path="/proc", kind="proc", mode="rw")
    for path, size_mb, _ in session_file_systems(sizes):
        # Those of an artifact's own jail come from its own programs.
        inodes = None if kind == "artifact" else size_mb * INODES_PER_MB
        yield MountRule(path=path, kind="tmpfs", mode="rw", size_mb=size_mb, inodes=inodes)


def _writable_root(mounts: Sequence[MountRule], image: str, size_mb: int) -> Iterator[MountRule]:
    """The same mounts with the files of an image as the root, which the session may change."""
    yield MountRule(
        path="/",
        kind="overlay",
        mode="cow",
        size_mb=size_mb,
        inodes=size_mb * INODES_PER_MB,
        source=image,
    )
    yield MountRule(path="/run/nsm", kind="tmpfs")
    for mount in mounts:
        if mount.path not in ("/", IMAGE_PLACE) and not is_within(mount.path, "/etc"):
            yield mount


def _grouped(binds: Sequence[ReadOnlyBind]) -> Iterator[MountRule]:
    """Rules for an environment's binds; paths of a store may be hundreds."""
    siblings = Counter(dirname(bind.target) for bind in binds)
    for parent, count in siblings.items():
        if count > MOST_SIBLINGS and parent != "/":
            yield MountRule(path=parent, kind="binds", entries=count, source=parent)
    for bind in binds:
        parent = dirname(bind.target)
        if siblings[parent] <= MOST_SIBLINGS or parent == "/":
            yield MountRule(path=bind.target, kind="bind", source=bind.source)


def _as_row(mount: MountRule, *, sources: bool) -> Mapping[str, Any]:
    some = {
        "size_mb": mount.size_mb,
        "inodes": mount.inodes,
        "entries": mount.entries,
        "source": mount.source if sources else None,
    }
    return {
        "path": mount.path,
        "kind": mount.kind,
        "mode": mount.mode,
        **{key: value for key, value in some.items() if value is not None},
    }
