"""Clauses for people and models: the rule of the policy for each piece of evidence.

They contain no text from the code except names of refused hosts, on one line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nsm.dataclass import dataclass
from nsmd.denials.messages import Evidence, Kind
from nsmd.host.paths import is_within
from nsmd.model.packages import WELL_KNOWN, module_of, package_of
from nsmd.model.policy import DEVICES, MountRule, Policy
from nsmd.model.values import Environment, Interpreter, LimitEvent, NetworkRule, ProjectMount

HOST_DIRECTORIES = ("boot", "home", "media", "mnt", "opt", "root", "run", "srv", "sys", "var")
"""Top-level directories of every host (hier(7)) that a jail does not have."""

HOST_FILES = frozenset(
    "crontab fstab gshadow hostname machine-id os-release shadow ssh sudoers systemd".split()
)
"""Files in /etc of every host that a jail does not have; it has other files there."""

_MIB = 1 << 20

_NEEDS_PERSON: dict[Kind, str] = {
    "input": "standard input is empty, and nobody types: put the input into the code, or pipe it "
    "to the program",
    "terminal": "there is no terminal, and nobody presses keys: edit files with code or `sed -i`, "
    "and give texts as options (`git commit -m`)",
    "signing": "there are no keys to sign with, so nothing was committed: the user can sign, or "
    "allow `git commit --no-gpg-sign`",
}
"""Sentences about programs that wait for a person, or need what only a person has."""

_USUAL_DEVICES = {f"/dev/{name}" for name in DEVICES}
"""Devices of every jail."""

_PACKAGE = re.compile(r"(?:@[\w.-]+/)?[A-Za-z0-9][\w.-]{0,60}", re.ASCII)
"""Names that may stand in a command."""

_MOST_IN_COMMAND = 4

_MOST_NAMED = 4
"""Largest number of paths or hosts that one line names: a model reads the line with
every result.
"""

_MAX_NAME_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Facts about an execution besides its outcome.

    Attributes:
        code: the code that ran.
        project: project that its session sees.
        network: present network rule; None for that of its policy.
        refused: hosts, with ports, that the session was refused meanwhile.
        upstream: a sentence why the upstream proxy led nowhere meanwhile; else empty.
        keeps_state: its session should outlive it.
        environments: environments that the client can use.
        has_input: it had standard input.
        environment: environment of the session; None for one with the host's programs.
    """

    code: str = ""
    project: ProjectMount | None = None
    network: NetworkRule | None = None
    refused: Sequence[str] = ()
    upstream: str = ""
    keeps_state: bool = True
    environments: Sequence[Environment] = ()
    environment: Environment | None = None
    has_input: bool = False


def clauses(
    policy: Policy,
    found: Sequence[Evidence],
    events: Sequence[LimitEvent],
    circumstances: Circumstances,
) -> list[str]:
    """Explain the rules that the evidence shows, and what is allowed instead."""
    project, here = circumstances.project, circumstances.environment
    network = circumstances.network or policy.network
    subjects: dict[Kind, list[str]] = {}
    for one in found:
        subjects.setdefault(one.kind, []).append(one.subject)
    missing = _of_packages(
        subjects, circumstances.environments, here=here, installable=network.mode != "off"
    )
    unreachable = "unreachable" in subjects and not missing
    said = missing or [_network(network, circumstances.refused, unreachable=unreachable)]
    if circumstances.upstream:
        said.append(circumstances.upstream[0].lower() + circumstances.upstream[1:].rstrip("."))
    if missing and "apt" in subjects:  # apt reads files that the jail lacks, and needs root
        subjects.pop("hidden", None)
        subjects.pop("privilege", None)
    if "socket" in subjects:
        said.append("no raw sockets and rare families; TCP, UDP and Unix sockets work")
    writable = names(_writable(policy))
    read_only = _read_only(policy, project, subjects.get("read-only", ()), writable)
    said.append(read_only)
    said += _full(policy, subjects.get("full", ()))
    said += _hidden(policy, project, subjects.get("hidden", ()), here)
    said += list(_limits(policy, subjects, events))
    if "sigbus" in subjects:
        mount = policy.mount_at("/dev/shm")  # noqa: S108 - in the jail
        bound = "" if mount is None else _bound_text(mount)
        said.append(f"a bus error can mean that /dev/shm is full{bound}")
    said += [sentence for kind, sentence in _NEEDS_PERSON.items() if kind in subjects]
    if "group" in subjects and any(mount.mode == "cow" for mount in policy.mounts):
        said.append(
            "files of other groups cannot be changed in a copy of the project, since the kernel "
            "copies files of one group only: the user can give them to that of the project "
            "(`chgrp`)"
        )
    if "privilege" in subjects:
        said.append("no root rights, no mounts and no further namespaces")
    if read_only and writable and writable not in read_only:
        said.append(f"writable: {writable}")
    return list(dict.fromkeys(clause for clause in said if clause))


def killed(policy: Policy, event: LimitEvent, lost: str) -> str:
    """Describe a limit that ended something, and what was lost with it, if anything."""
    peak = ""
    if event.peak_bytes is not None:
        peak = f" (peak {-(-event.peak_bytes // _MIB)} MB)"
    limit = f"{policy.limits.memory_mb} MB"
    if event.enforced_by == "cgroup":
        # The kernel also counts files in memory, for which there is room on top.
        limit = f"{event.limit // _MIB} MB (files in memory included)"
    said = f"killed: memory limit {limit} reached{peak}"
    what = lost or plain(event.what)
    return f"{said}; {what}" if what else said


def _network(network: NetworkRule, refused: Sequence[str], *, unreachable: bool) -> str:
    match network.mode:
        case "off" if unreachable or refused:
            return "network is off; only this session's own localhost can be reached"
        case "allow" if refused:
            return f"network is limited to {_allowed(network)}; refused: {names(refused)}"
        case "allow" if unreachable:
            return (
                f"network is limited to {_allowed(network)}, through the proxy that HTTPS_PROXY "
                "names"
            )
        case _:
            return ""


def _allowed(network: NetworkRule) -> str:
    return names(network.allow) or "an empty list of hosts"


def _read_only(
    policy: Policy, project: ProjectMount | None, subjects: Sequence[str], writable: str
) -> str:
    mounts = [policy.mount_at(subject) for subject in subjects if subject.startswith("/")]
    unknown = len(mounts) < len(subjects) or None in mounts
    places = {mount.path: None for mount in mounts if mount is not None and mount.mode == "ro"}
    named = [place for place in places if place != "/"]
    if not named:
        return f"all is read-only but {writable or 'nothing'}" if places or unknown else ""
    text = f"{names(named)} {'is' if len(named) == 1 else 'are'} read-only"
    if project is not None and project.mount_point in named:
        which = "" if len(named) == 1 else f" ({project.mount_point})"
        text += f", unless the user sets the project's mode to overlay{which}"
    return text


def _writable(policy: Policy) -> list[str]:
    places = [path for path in policy.writable if not is_within(path, "/dev")]
    return sorted(places, key=lambda path: (path != "/workspace", path != "/tmp", path))  # noqa: S108 - in the jail


def _full(policy: Policy, subjects: Sequence[str]) -> list[str]:
    mounts = [policy.mount_at(subject) for subject in subjects if subject.startswith("/")]
    named = [
        f"{mount.path} is full{_bound_text(mount)}"
        for mount in mounts
        if mount is not None and (mount.mode == "cow" or mount.size_mb is not None)
    ]
    if named or not subjects or (mounts and len(mounts) == len(subjects)):
        return named
    sized = [mount for mount in policy.mounts if mount.mode != "ro" and mount.size_mb is not None]
    sizes = ", ".join(f"{mount.path} {mount.size_mb} MB" for mount in sized)
    return [f"a writable place is full ({sizes})"] if sizes else []


def _bound_text(mount: MountRule) -> str:
    bounds = [f"{mount.size_mb} MB"] if mount.size_mb is not None else []
    if mount.inodes is not None:
        bounds.append(f"{mount.inodes} files")
    return f" (at most {', '.join(bounds)})" if bounds else ""


def _hidden(
    policy: Policy,
    project: ProjectMount | None,
    subjects: Sequence[str],
    here: Environment | None,
) -> list[str]:
    said: list[str] = []
    places: dict[str, None] = {}
    for subject in subjects:
        if project is not None and is_within(subject, project.path):
            # otherwise it is there, without that file
            if not is_within(subject, project.mount_point):
                said.append(
                    f"the project {plain(project.path, 200)} is at {project.mount_point} here"
                )
        elif place := _host_place(policy, subject):
            places[place] = None
    if places:
        own = here is not None and (here.image is not None or here.artifact is not None)
        shown = [*([] if own else ["/usr"]), *([] if project is None else ["the project"])]
        are = "is" if len(places) == 1 else "are"
        said.append(
            f"the host's {names(list(places))} {are} not shown here; of the host, "
            f"{' and '.join(shown) or 'nothing'} can be read"
        )
    return said


def _host_place(policy: Policy, subject: str) -> str:
    """Directory of every host that contains a path which the jail lacks; or empty."""
    mount = policy.mount_at(subject)
    if mount is None or mount.path != "/":
        return ""
    top, *below = subject.split("/")[1:]
    if top == "etc":
        return f"/etc/{below[0]}" if below and below[0] in HOST_FILES else ""
    return f"/{top}" if top in HOST_DIRECTORIES else ""


def _limits(
    policy: Policy, subjects: dict[Kind, list[str]], events: Sequence[LimitEvent]
) -> Iterator[str]:
    limits = policy.limits
    told = {event.kind for event in events}
    each = " for each process" if limits.memory_by == "rlimit" else ""
    memory = f"memory is limited to {limits.memory_mb} MB{each}"
    processes = f"at most {limits.processes} processes and threads at a time"
    if "processes" in told or "processes" in subjects:
        yield processes
    elif "threads" in subjects:
        yield f"{processes}, and {limits.memory_mb} MB of memory, stacks of threads included"
    if "memory" not in told and (subjects.keys() & {"memory", "array", "exhausted"}):
        yield memory
    if "descriptors" in subjects:
        yield f"at most {limits.descriptors} open files for each process"


def _of_packages(
    subjects: Mapping[Kind, Sequence[str]],
    environments: Sequence[Environment],
    *,
    here: Environment | None = None,
    installable: bool,
) -> list[str]:
    """Say which environments have missing packages, and how the user adds them, unless code may get
    them over a network (`installable`). Nothing if there may be another cause.

    `here` is the session's environment; None for one with the host's programs.
    """
    modules = [module_of(name) for name in subjects.get("index", ())]
    modules += [
        name
        for name in subjects.get("module", ())
        # Another one may belong to the project and be elsewhere.
        if name in WELL_KNOWN or _with(name, "python", environments)
    ]
    python = list(dict.fromkeys(name for name in modules if name))
    node = list(dict.fromkeys((*subjects.get("npm", ()), *subjects.get("node-module", ()))))
    said = [
        *_environments_with(python, "python", environments),
        *_environments_with([name for name in node if name], "node", environments),
    ]
    if installable:
        return said if {"module", "node-module"} & subjects.keys() else []
    how: list[str] = []
    if "index" in subjects or python:
        packages = (*filter(None, subjects.get("index", ())), *map(package_of, python))
        how.append(_adding("pip", {module_of(name): name for name in reversed(packages)}.values()))
        if python and environments and not said:
            said.append(f"no environment is known to have {names(python)}")
    if "npm" in subjects or "node-module" in subjects:
        how.append(f"{_adding('npm', node)}, or install it in the project's node_modules")
    if "apt" in subjects:
        how.append(_installing_with_apt(here))
    return ["network is off, so nothing can be installed", *said, *how] if how else []


def _adding(option: str, packages: Iterable[str]) -> str:
    """Say how the user adds an environment that has these packages."""
    wanted = sorted(name for name in packages if _PACKAGE.fullmatch(name))
    words = " ".join(wanted[:_MOST_IN_COMMAND]) or "PACKAGES"
    words = f'"{words}"' if " " in words else words
    return f"the user can add an environment: `nsm env add NAME --{option} {words}`"


def _installing_with_apt(here: Environment | None) -> str:
    if here is not None and here.image is not None:
        return (
            "the system's packages are those of the environment's image: the user can build one "
            "that has more, and add it with `nsm env add NAME --image IMAGE`"
        )
    if here is not None and here.artifact is not None:
        return "Nix made this environment: the user can add packages to its flake"
    return "the user can install packages on the host, whose /usr is shown here"


def _environments_with(
    wanted: Sequence[str], language: Interpreter, environments: Sequence[Environment]
) -> list[str]:
    """Say which environments have which of these modules."""
    having = {name: _with(name, language, environments) for name in wanted}
    return [
        f"{plain(name)} is in environment{'s' if len(there) > 1 else ''} {names(there)}"
        for name, there in having.items()
        if there
    ]


def _with(name: str, language: Interpreter, environments: Sequence[Environment]) -> list[str]:
    return [
        environment.name
        for environment in environments
        if environment.problem is None
        and environment.interpreter == language
        and environment.has_module(name)
    ]


def said_of_gpus(
    policy: Policy, kinds: Collection[Kind], environments: Sequence[Environment], *, failed: bool
) -> Iterator[str]:
    """Explain messages about GPUs. Without a GPU, code that has not failed may only have asked."""
    has_gpu = not _USUAL_DEVICES.issuperset(policy.devices)
    if "gpu-memory" in kinds:
        yield (
            "GPU memory ran out: all sessions and programs of this machine share it, and nsm "
            "limits none of them; `nsm top` shows the user who has it"
        )
    if "gpu-driver" in kinds:
        yield (
            "the GPU's driver was upgraded, and the kernel runs the older module until the user "
            "restarts the machine"
        )
    elif "gpu-lost" in kinds:
        yield "the GPU has fallen off its bus; the user has to restart the machine"
    elif "no-gpu" in kinds and has_gpu:
        yield (
            "the GPU of this environment cannot be used: it is gone, or its driver has changed "
            "since the session began. A new session sees what is there now; `nsm doctor` says more"
        )
    elif "no-gpu" in kinds and failed:
        others = sorted(each.name for each in environments if each.shown_devices is not None)
        if others:
            yield f"this environment has no GPU; {names(others)} {_has(others)} one"
        else:
            yield "this environment has no GPU; the user can give it one (`devices` in config.toml)"


def _has(which: Sequence[str]) -> str:
    return "has" if len(which) == 1 else "have"


def plain(text: str, limit: int = _MAX_NAME_CHARS) -> str:
    """Put a text from outside on one line."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def names(all_names: Sequence[str]) -> str:
    """List some of the names, and say if there are more."""
    shown = [plain(name) for name in all_names[:_MOST_NAMED]]
    if len(all_names) > _MOST_NAMED:
        shown.append(f"{len(all_names) - _MOST_NAMED} more")
    return ", ".join(shown)
