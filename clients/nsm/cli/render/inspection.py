"""A session as text for people: its rules, its life, and what ran in it. Pure.

A field that is not there, or is another than it should be, is shown as `-`: the supervisor may be
older or newer than this program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from nsm.cli.render import formats
from nsm.cli.render.environments import suggestion
from nsm.cli.render.sessions import own_jobs_table, ports_table

if TYPE_CHECKING:
    from nsm.wire.inspection import Inspection, NetworkDecision, ProcessRow, RunRow

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
        *life(found),
    ]
    if found.policy is None:
        if row.state != "ended":
            unread = "its policy cannot be read: another version of nsm wrote it"
            lines.append(("jail", unread if found.contradictions else "none yet"))
        return "\n\n".join([formats.listing(lines), *tables(found)])
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
        texts += ["", "An older artifact made this jail: it may show more, which nsm cannot know."]
    texts += [f"\n{each}" for each in tables(found)]
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


_STARTS = {
    "cold": "in a jail of its own",
    "forked": "as a fork of a template",
    "artifact": "in the jail of its artifact",
    "artifact-forked": "as a fork of a template, in the jail of its artifact",
}

_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a device",
    "T": "stopped",
    "t": "traced",
    "Z": "has ended",
    "I": "idle",
}
"""proc_pid_stat(5)."""

_KEPT_READY_S = 0.1
"""Shortest time between start and use from which a session counts as made in advance."""

_CODE_COLUMNS = 48


def life(found: Inspection) -> list[tuple[str, str]]:
    """Start, state and end of a session, as names and texts for `formats.listing`."""
    row = found.session
    if row.state == "ended":
        since = (
            f"{formats.duration(row.idle_s)} ago, after {formats.duration(row.age_s - row.idle_s)}"
        )
        return [("ended", f"{since}: {found.end_reason or 'nobody knows why'}")]
    lines: list[tuple[str, str]] = []
    if text := _start(found.start or {}):
        lines.append(("start", text))
    lines.append(("age", _age(found)))
    if row.labels:
        told = (f"{name}={value}" for name, value in sorted(row.labels.items()))
        lines.append(("labels", formats.visible(" ".join(told))))
    if row.state == "running":
        lines.append(("running", f"for {formats.duration(row.running_s or 0)}"))
    if row.queued:
        lines.append(("waiting", formats.count(row.queued, "execution")))
    lines += [("slow import", suggestion(row.env, slow)) for slow in found.slow_imports]
    if row.taken_up:
        lines.append(
            ("taken up", f"by a new supervisor {formats.count(row.taken_up, 'time')}, as it was")
        )
    if row.outdated:
        lines.append(
            (
                "outdated",
                "its interpreter, libraries or modules have changed on disk; new sessions use them",
            )
        )
    if found.end_reason:
        lines.append(("ending", found.end_reason))
    return lines


def _start(start: Mapping[str, Any]) -> str:
    how = _STARTS.get(str(start.get("kind")), "")
    took_s, spare_s = _number(start, "start_s"), _number(start, "spare_s")
    parts: list[str] = [how] if how else []
    if took_s is not None:
        parts.append(f"in {formats.milliseconds(took_s)}")
    text = " ".join(parts)
    if spare_s is not None and spare_s >= _KEPT_READY_S:
        text += f"; was kept ready for {formats.duration(spare_s)}"
    if why := start.get("why_cold"):
        text += f"; no fork: {why}"
    return text


def _age(found: Inspection) -> str:
    row, lifetime = found.session, found.lifetime or {}
    text = formats.duration(row.age_s)
    most_s, idle_s = _number(lifetime, "max_lifetime_s"), _number(lifetime, "idle_timeout_s")
    if most_s is not None:
        text += f" of at most {formats.duration(most_s)}"
    if row.state == "idle":
        text += f"; idle for {formats.duration(row.idle_s)}"
        if idle_s is not None:
            text += f", ends after {formats.duration(idle_s)}"
    elif idle_s is not None:
        text += f"; ends when it is idle for {formats.duration(idle_s)}"
    return text


def tables(found: Inspection) -> list[str]:
    """Tables of its ports, processes, last executions and jobs, and its network's decisions; those
    that there are."""
    texts: list[str] = []
    if found.ports:
        texts.append(ports_table(found.ports))
    if found.processes:
        texts.append(_processes(found.processes, found.session.processes))
    if found.executions:
        texts.append(_executions(found.executions))
    if found.jobs:
        texts.append(own_jobs_table(found.jobs))
    if found.decisions:
        texts.append(_decisions(found.decisions))
    return texts


def _processes(rows: Sequence[ProcessRow], number: int | None) -> str:
    text = formats.table(
        "PID INSIDE PROCESS STATE MEMORY CPU THREADS COMMAND".split(),
        (
            (
                str(row.pid),
                str(row.inside),
                row.name,
                _STATES.get(row.state, row.state),
                formats.memory(row.memory_bytes),
                formats.processor_time(row.cpu_s),
                str(row.threads),
                row.command or "-",
            )
            for row in rows
        ),
        right="PID INSIDE MEMORY CPU THREADS",
    )
    more = (number or 0) - len(rows)
    return text if more <= 0 else f"{text}\nand {more} more"


def _executions(rows: Sequence[RunRow]) -> str:
    text = formats.table(
        "RUN BEGAN BY TOOK OUTCOME CODE".split(),
        (
            (
                str(row.number),
                formats.date(row.started_at),
                row.client,
                "-" if row.duration_s is None else f"{row.duration_s:.2f} s",
                _outcome(row),
                _code(row),
            )
            for row in rows
        ),
        right="RUN TOOK",
    )
    earlier = rows[0].number - 1
    if earlier <= 0:
        return text
    return f"{text}\nand {formats.count(earlier, 'earlier execution')}: see `nsm logs`"


def _outcome(row: RunRow) -> str:
    text = row.outcome
    if row.outcome == "error" and row.exit_code is not None:
        text += f" {row.exit_code}"
    return f"{text}: {row.why.splitlines()[0]}" if row.why else text


def _code(row: RunRow) -> str:
    lines = row.code.strip().splitlines() or [""]
    first = formats.visible(lines[0].strip())
    whole = len(lines) == 1 and not row.code_omitted and len(first) <= _CODE_COLUMNS
    return first if whole else first[: _CODE_COLUMNS - 4] + " ..."


def _decisions(rows: Sequence[NetworkDecision]) -> str:
    return formats.table(
        "AGO HOST VERDICT WHY".split(),
        (
            (
                formats.duration(row.age_s),
                f"{row.host}:{row.port}" if row.host else "-",
                row.verdict,
                row.detail or "-",
            )
            for row in rows
        ),
        right="AGO",
    )


def _number(wire: Mapping[str, Any], key: str) -> float | None:
    value = wire.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
