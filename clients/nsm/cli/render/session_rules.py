"""A session and its rules as text for people; pure, as `nsm.cli.render.formats`.

A field that is not there, or is another than it should be, is shown as `-`: the supervisor may be
older or newer than this program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from nsm.cli.render import formats, session_details

if TYPE_CHECKING:
    from nsm.wire.inspection import Inspection

_ENFORCED = {
    "cgroup": "by its control group",
    "watchdog": "by the supervisor, which looks while code runs",
    "rlimit": "for each process alone",
    "none": "by nothing",
}

_OF_USERS = {**_ENFORCED, "rlimit": "by the kernel's count for the session's own users"}
"""RLIMIT_NPROC is of a user, in a user namespace."""

_KINDS = {
    "cold": "of its own, made of the host's programs",
    "forked": "a fork of a template, made of the host's programs",
    "artifact": "of its own, made by the environment's artifact",
    "artifact-forked": "a fork of a template, made by the environment's artifact",
}

_MODES = {"ro": "read-only", "rw": "read-write", "cow": "copy-on-write"}


def inspection(found: Inspection, home: str) -> str:
    """The text of `nsm inspect`. Paths below `home` are shown with ``~``."""
    row = found.session
    lines = [
        ("session", f"{row.id}{f', {row.name}' if row.name else ''}, {row.state}"),
        ("environment", row.env),
        ("client", f"{row.client}, scope {row.scope}"),
        *session_details.life(found),
    ]
    if found.policy is None:
        if row.state != "ended":
            unread = "its policy cannot be read: another version of nsm wrote it"
            lines.append(("jail", unread if found.contradictions else "none yet"))
        return "\n\n".join([formats.listing(lines), *session_details.tables(found)])
    policy = found.policy
    lines += [
        ("jail", _jail(policy, found)),
        ("network", _network(found.network or _map(policy, "network"))),
        *_limits(_map(policy, "limits"), row.memory_bytes, found.confinement or {}),
        *_gpus(found),
        ("rights", _rights(_map(policy, "rights"))),
        ("variables", " ".join(_texts(policy, "variables")) or "-"),
        ("devices", " ".join(_texts(policy, "devices")) or "-"),
    ]
    texts = [formats.listing(lines), "", _mounts(policy, home)]
    if policy.get("complete") is False:
        texts += ["", "An older artifact made this jail: what else it shows, it knows alone."]
    texts += [f"\n{each}" for each in session_details.tables(found)]
    texts += [f"\nwarning: {formats.visible(each)}" for each in found.contradictions]
    return "\n".join(texts)


def _jail(policy: Mapping[str, Any], found: Inspection) -> str:
    kind = str(policy.get("kind", "-"))
    text = _KINDS.get(kind, kind)
    if found.kernel is not None:
        text += f"; process {found.session.pid} of user {found.kernel.get('uid', '-')}"
        group = found.kernel.get("cgroup")
        if group and group != "/":
            text += f", control group {group}"
    return text


def _network(network: Mapping[str, Any]) -> str:
    mode = network.get("mode", "-")
    if problem := network.get("problem"):
        return f"nothing: {problem}"
    if mode == "off":
        return "off: nothing but its own loopback"
    if mode == "allow":
        return f"by a proxy, to: {', '.join(_texts(network, 'allow')) or 'nothing'}"
    return "full: whatever the host reaches" if mode == "full" else str(mode)


def _limits(
    limits: Mapping[str, Any], memory_bytes: int | None, confinement: Mapping[str, Any]
) -> list[tuple[str, str]]:
    weight = limits.get("cpu_weight")
    processes_by = _by(limits, "processes_by", _OF_USERS)
    has = "" if memory_bytes is None else f"; has {formats.memory(memory_bytes)}"
    now = confinement.get("cpu_weight")
    lowered = f"; {now} while it works for long" if weight and now and now != weight else ""
    peak = confinement.get("peak_bytes")
    if isinstance(peak, int) and peak:
        has += f", had {formats.memory(peak)}"
    return [
        ("memory", f"{limits.get('memory_mb', '-')} MiB, kept {_by(limits, 'memory_by')}{has}"),
        (
            "processes",
            f"{limits.get('processes', '-')}, kept {processes_by}",
        ),
        ("descriptors", f"{limits.get('descriptors', '-')} of each process"),
        (
            "processor",
            f"weight {weight}, kept {_by(limits, 'cpu_by')}{lowered}"
            if weight
            else "no share of its own",
        ),
        ("time", f"{limits.get('timeout_s', '-')} s for an execution"),
        ("output", f"{limits.get('output_bytes', '-')} bytes of a stream in a result"),
    ]


def _gpus(found: Inspection) -> list[tuple[str, str]]:
    """A line for the session's use of GPUs, and one for each of the machine's."""
    report = found.gpus
    if report is None:
        return []
    if report.problem:
        return [("gpu", f"unknown: {report.problem}")]
    row = found.session
    share = "" if row.gpu_percent is None else f", {row.gpu_percent:g} % of the time"
    lines = [f"has {formats.memory(row.gpu_memory_bytes)}{share}; memory is shared and not limited"]
    for gpu in report.gpus:
        name = f"GPU {gpu.number}{f' ({gpu.name})' if gpu.name else ''}"
        if gpu.problem:
            lines.append(f"{name}: {gpu.problem}")
            continue
        busy = "" if gpu.percent is None else f", busy {gpu.percent} %"
        size = formats.memory_of_limit(gpu.used_bytes, gpu.memory_bytes or 0)
        lines.append(f"{name}: {size} in use by all programs{busy}")
    return [("gpu" if number == 0 else "", line) for number, line in enumerate(lines)]


def _by(limits: Mapping[str, Any], key: str, words: Mapping[str, str] = _ENFORCED) -> str:
    value = str(limits.get(key, "-"))
    return words.get(value, value)


def _rights(rights: Mapping[str, Any]) -> str:
    def word(key: str, yes: str, no: str) -> str:
        return yes if rights.get(key) is True else no

    return ", ".join(
        [
            f"user {rights.get('uid', '-')}",
            f"capabilities: {' '.join(_texts(rights, 'capabilities')) or 'none'}",
            word("no_new_privs", "no new privileges", "new privileges"),
            word("system_call_filter", "system calls filtered", "system calls not filtered"),
            word("nested_namespaces", "namespaces of its own", "no namespaces of its own"),
        ]
    )


def _mounts(policy: Mapping[str, Any], home: str) -> str:
    rows = policy.get("mounts")
    mounts = cast("list[Mapping[str, Any]]", rows) if isinstance(rows, list) else []
    return formats.table(
        "PATH KIND MODE SIZE INODES SOURCE".split(),
        [
            [
                str(mount.get("path", "-")),
                _kind(mount),
                _MODES.get(str(mount.get("mode")), "-"),
                f"{mount['size_mb']} MiB" if "size_mb" in mount else "-",
                str(mount.get("inodes", "-")),
                formats.below_home(str(mount.get("source", "-")), home),
            ]
            for mount in mounts
        ],
        right="SIZE INODES",
    )


def _kind(mount: Mapping[str, Any]) -> str:
    kind, entries = str(mount.get("kind", "-")), mount.get("entries")
    return f"{kind} ({entries})" if entries is not None else kind


def _map(wire: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = wire.get(key)
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _texts(wire: Mapping[str, Any], key: str) -> Sequence[str]:
    value = wire.get(key)
    return [str(each) for each in cast("list[object]", value)] if isinstance(value, list) else []
