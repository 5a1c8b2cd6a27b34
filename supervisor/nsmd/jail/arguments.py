"""Arguments of bwrap for one jail, with what it shows beyond the base system; pure.

`docs/explanation/security.md` has the layers. The order matters, since bwrap handles them from
first to last: mount points are made before `/` becomes read-only, and parents before children.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nsm.dataclass import dataclass, field
from nsm.git import jail_settings
from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.host.paths import is_within
from nsmd.jail.host import HOSTNAME, HostSystem
from nsmd.model.policy import JAIL_UID, WORKSPACE, session_file_systems
from nsmd.model.values import (
    IMAGE_PLACE,
    Artifact,
    DeviceNode,
    Environment,
    ImageRoot,
    JailSizes,
    Links,
    ProjectMount,
    ReadOnlyBind,
    ShownDevices,
)
from sandbox.names import RESOLVER
from sandbox.template.preloading import SCRATCH

AGENT_PATH = "/run/nsm/agent.py"
TEMPLATE_PATH = "/run/nsm/template.py"
GIT_SETTINGS_PATH = "/etc/gitconfig"
FILTER_PATH = "/run/nsm/filter"

SCRATCH_MB = 64
"""Size of each writable directory in a template's jail; matplotlib's list of fonts takes 1 MiB."""

PLACES = ("/bin", "/dev", "/etc", "/proc", "/run/nsm", "/sbin", "/tmp", "/usr", WORKSPACE)  # noqa: S108
"""Directories that every jail has itself; nothing else is mounted there or above."""

IMAGE_PLACES = ("/dev", "/proc", "/run", "/sys", "/tmp", WORKSPACE)  # noqa: S108
"""The same in jails whose root directory is a container image's: what it has there is not shown."""

_PASSWD = f"""\
user:x:{JAIL_UID}:{JAIL_UID}:user:{WORKSPACE}:/bin/bash
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
"""

SYNTHETIC_FILES: tuple[tuple[str, str], ...] = (
    ("/etc/passwd", _PASSWD),
    ("/etc/group", f"user:x:{JAIL_UID}:\nnogroup:x:65534:\n"),
    ("/etc/hosts", f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n"),
    # Only files: a name look-up fails at once instead of waiting for a resolver.
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    # Jails that know the user's name have it here (`nsmd.jail.host`).
    (GIT_SETTINGS_PATH, jail_settings({})),
)
"""Files that describe user and host without facts about the real ones. There is no /etc/localtime,
so time is UTC without a variable for the zone.
"""

NAME_FILES: tuple[tuple[str, str], ...] = (
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("/etc/resolv.conf", f"nameserver {RESOLVER[0]}\n"),
)
"""Files by which programs in sessions with a list of hosts look names up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec:
    """Complete specification of a template; sessions of equal specifications are forks of one
    template.

    The variables are those during the import of preloaded modules; empty without such modules or
    devices. With `named_hosts`, programs look names up at their agent (`sandbox.names`).
    Workers are forked of the image's Python, `worker`; it is empty if its sessions run none.
    """

    agent_python: str
    binds: tuple[ReadOnlyBind, ...]
    path: str
    preload: tuple[str, ...]
    project: ProjectMount | None
    artifact: Artifact | None = None
    host_network: bool = False
    named_hosts: bool = False
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    links: Links = ()
    image: ImageRoot | None = None
    shown_devices: ShownDevices | None = None
    worker: str = ""

    def __hash__(self) -> int:
        # As for `Environment`.
        return hash((self.agent_python, self.path, self.project and self.project.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class BindMount:
    """A read-only bind of a host path, or of an open descriptor of it by number; or an overlay,
    with a directory for its changes and an empty one beside it.
    """

    source: str | int
    target: str
    layer: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileData:
    """A file; bwrap copies its content from a descriptor."""

    descriptor: int
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JailContent:
    """Content of a jail, with the descriptors for bwrap.

    The mounts are those beyond the base system; they are sorted here so that parents come first. On
    `info_fd` bwrap tells the process id of the jail's PID 1; None where nobody asks. The variables
    are in addition to those of every jail, or in their place; links are at paths where the jail has
    nothing else. With an image as its root directory, it shows none of the host's base system.
    """

    host: HostSystem
    mounts: Sequence[BindMount]
    files: Sequence[FileData]
    path: str
    info_fd: int | None = None
    filter_fd: int | None = None
    variables: Sequence[tuple[str, str]] = field(default=(), repr=False)
    host_network: bool = False
    links: Links = ()
    image: bool = False
    devices: Sequence[DeviceNode] = ()


def session_arguments(content: JailContent, sizes: JailSizes) -> list[str]:
    """Everything that bwrap reads from `--args`, except the command, for a session's own jail."""
    return [
        *_namespaces(content),
        # Without it, code makes a user namespace in which it undoes read-only binds.
        *("--disable-userns", "--hostname", HOSTNAME),
        "--as-pid-1",
        *_filter(content.filter_fd),
        *_base_system(content),
        *("--proc", "/proc", "--dev", "/dev"),
        *(word for path in content.host.hidden for word in ("--ro-bind", "/dev/null", path)),
        *_private_file_systems(sizes),
        *_content(content),
        *("--chdir", WORKSPACE),
    ]


def template_arguments(content: JailContent) -> list[str]:
    """The same arguments for a template's jail, in which sessions are forked.

    Forks need nested user namespaces, and mount their file systems over the directories here.
    Preloaded modules may write to `SCRATCH`, which the template empties before the first fork, and
    which forks see read-only and covered. bwrap stays PID 1, so that forks outlive the template.
    """
    scratch = str(SCRATCH_MB * 1024 * 1024)
    return [
        *_namespaces(content),
        *_base_system(content),
        *("--proc", "/proc", "--dev", "/dev"),
        *(
            argument
            for path, _, mode in session_file_systems(JailSizes())
            for argument in (
                ("--perms", mode, "--size", scratch, "--tmpfs", path)
                if path in SCRATCH
                else ("--dir", path)
            )
        ),
        *_content(content),
        *("--chdir", "/"),
    ]


def build_arguments(content: JailContent, writable: Sequence[tuple[str, str]]) -> list[str]:
    """The same arguments for the jail of a build, which ends with the process that starts it.
    `writable` has host directories, and the paths at which the jail may change them.
    """
    scratch = str(SCRATCH_MB * 1024 * 1024)
    return [
        *_namespaces(content),
        *("--disable-userns", "--hostname", HOSTNAME, "--die-with-parent"),
        *_filter(content.filter_fd),
        *_base_system(content),
        *("--proc", "/proc", "--dev", "/dev"),
        *(word for path in content.host.hidden for word in ("--ro-bind", "/dev/null", path)),
        *(word for path in ("/dev/shm", "/tmp") for word in ("--size", scratch, "--tmpfs", path)),  # noqa: S108
        *("--size", scratch, "--tmpfs", WORKSPACE),
        *(word for bind in writable for word in ("--bind", *bind)),
        *_content(content),
        *("--chdir", WORKSPACE),
    ]


def agent_command(
    environment: Environment, limits: Mapping[str, int], *, host_network: bool = False
) -> list[str]:
    """Command that the jail runs as PID 1 (`docs/contributing/agent-protocol.md`, Start)."""
    return [
        *python_command(environment.agent_python, environment.image),
        *("-I", AGENT_PATH),
        *_interpreter_words(environment),
        *("--workspace", WORKSPACE),
        # At the start, since the filter keeps the agent from limiting a running interpreter.
        *("--limits", json.dumps(limits)),
        *(("--network", "host") if host_network else ()),
    ]


def _interpreter_words(environment: Environment) -> Iterator[str]:
    if not environment.only_programs:
        yield from ("--prestart", environment.interpreter)
        yield from (f"--{environment.interpreter}", environment.program)


def template_command(spec: TemplateSpec) -> list[str]:
    """Command that a template's jail runs (agent-protocol.md, Templates)."""
    words = ["--host-network"] if spec.host_network else []
    if spec.worker:
        root = writable_root(SCRATCH_MB) if spec.image and spec.image.writable else None
        words += ["--image", json.dumps({"program": spec.worker, "root": root})]
    paths = (AGENT_PATH, FILTER_PATH)
    python = python_command(spec.agent_python, spec.image)
    return [*python, "-I", TEMPLATE_PATH, *words, *paths, *spec.preload]


def writable_root(
    size_mb: int, *, more: Sequence[str] = (), copied: Sequence[str] = ()
) -> dict[str, Any]:
    """Describe a root directory that is a copy of an image's (agent-protocol.md, Templates), with
    `more` directories of the template's jail beside those that each has, and copies of some files.
    """
    kept = ["/dev", "/proc", "/run/nsm", *more]
    own = [path for path, _, _ in session_file_systems(JailSizes())]
    return {
        "image": IMAGE_PLACE,
        "size_mb": size_mb,
        "kept": kept,
        "made": [path for path in own if not any(is_within(path, each) for each in kept)],
        "copied": list(copied),
    }


def python_command(agent_python: str, image: ImageRoot | None) -> Sequence[str]:
    """Command of the Python that runs our programs in a jail."""
    return (agent_python,) if image is None else image.python


def _namespaces(content: JailContent) -> Iterator[str]:
    # Not --unshare-all: it implies the -try forms, which continue without a user namespace.
    yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts")
    yield from () if content.host_network else ("--unshare-net",)
    yield "--unshare-cgroup-try"
    yield from ("--uid", str(JAIL_UID), "--gid", str(JAIL_UID))
    yield from ("--cap-drop", "ALL")
    yield "--new-session"
    yield from () if content.info_fd is None else ("--info-fd", str(content.info_fd))


def _filter(fd: int | None) -> Iterator[str]:
    if fd is not None:
        yield from ("--seccomp", str(fd))


def _base_system(content: JailContent) -> Iterator[str]:
    if content.image:
        return
    host = content.host
    yield from ("--ro-bind", "/usr", "/usr")
    for target, path in host.links:
        yield from ("--symlink", target, path)
    for path in host.directories:
        yield from ("--ro-bind", path, path)
    for path in host.etc:  # a package may have been removed since
        yield from ("--ro-bind-try", path, path)


def _private_file_systems(sizes: JailSizes) -> Iterator[str]:
    for path, size_mb, mode in session_file_systems(sizes):
        yield from ("--perms", mode, "--size", str(size_mb * 1024 * 1024), "--tmpfs", path)


def _content(content: JailContent) -> Iterator[str]:
    # In an image's jail, /etc is the image's, and each file there is mounted over the image's.
    over = [file for file in content.files if content.image and file.target.startswith("/etc/")]
    yield from _files([file for file in content.files if file not in over])
    # Not --bind, with which the kernel opens no devices.
    for node in content.devices:
        yield from ("--dev-bind", node.source, node.path)
    yield from _mounts(content.mounts)
    for file in over:
        yield from ("--perms", "0444", "--ro-bind-data", str(file.descriptor), file.target)
    for path, target in content.links:
        yield from ("--symlink", target, path)
    # File systems of their own below stay writable.
    yield from ("--remount-ro", "/dev", "--remount-ro", "/")
    yield from _variables(content.path, content.variables)


def _files(files: Sequence[FileData]) -> Iterator[str]:
    # --file, not --ro-bind-data: `/` becomes read-only anyway, and five mounts take 1 ms.
    for file in files:
        yield from ("--perms", "0444", "--file", str(file.descriptor), file.target)


def _mounts(mounts: Sequence[BindMount]) -> Iterator[str]:
    for mount in sorted(mounts, key=lambda mount: mount.target):
        if mount.layer is not None:
            yield from ("--overlay-src", str(mount.source), "--overlay", *mount.layer, mount.target)
            continue
        option = "--ro-bind-fd" if isinstance(mount.source, int) else "--ro-bind"
        yield from (option, str(mount.source), mount.target)


def variables_of(path: str) -> Mapping[str, str]:
    """Variables of every jail."""
    return {
        "HOME": WORKSPACE,
        "LANG": "C.UTF-8",
        "LOGNAME": "user",
        "PATH": path,
        "TERM": "dumb",
        "TMPDIR": WORKSPACE,
        "USER": "user",
    }


def _variables(path: str, more: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, value in {**variables_of(path), **dict(more)}.items():
        yield from ("--setenv", name, value)


_WRITABLE = ("/tmp", WORKSPACE)  # noqa: S108 - in the jail


def needed_binds(
    binds: Sequence[ReadOnlyBind],
    project: ProjectMount | None,
    places: Sequence[str] = PLACES,
) -> Sequence[ReadOnlyBind]:
    """Binds of an environment that are needed in addition to a project. `places` are directories
    that such a jail has itself.

    Nothing is ever mounted below the project: its files are not ours, and a symlink among them
    would lead bwrap, which makes mount points, out of the jail (CVE-2026-87766).

    Raises `BadProjectError` if the mount point conflicts with a directory that the interpreter
    needs, `StartFailedError` if that is one of these places.
    """
    needed: list[ReadOnlyBind] = []
    for bind in binds:
        for place in places:
            if is_within(place, bind.target):
                raise StartFailedError(
                    f"The interpreter needs {bind.source}, but the jail has its own {place}.",
                    hint="Configure another interpreter in config.toml.",
                )
        if project is None or not _overlap(bind.target, project.mount_point):
            needed.append(bind)
        elif not _shown_by(project, bind):
            raise BadProjectError(
                f"The mount point {project.mount_point} and {bind.target}, which the environment's "
                "interpreter needs, cover each other.",
                hint="Choose another mount point, such as /project.",
            )
    return needed


def needed_links(links: Links, shown: Sequence[str], places: Sequence[str] = PLACES) -> Links:
    """Links of an environment that a jail can have. `shown` has the paths in the jail of the host's
    directories, the project included.

    bwrap follows a symlink on the way to a new one, and cannot make one in a read-only directory.
    So a link has no directory of the host above it or below it.
    """
    taken = [*shown, *(place for place in places if place not in _WRITABLE)]
    return tuple(
        (path, target)
        for path, target in links
        if not any(_overlap(path, place) for place in taken)
        and not any(is_within(place, path) for place in _WRITABLE)
    )


def _overlap(one: str, other: str) -> bool:
    return is_within(one, other) or is_within(other, one)


def _shown_by(project: ProjectMount, bind: ReadOnlyBind) -> bool:
    """Return whether the project already shows that directory at that path."""
    below = bind.target.removeprefix(project.mount_point)
    return is_within(bind.target, project.mount_point) and bind.source == project.path + below
