"""Environments as text, for `nsm env`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.render.formats import below_home, limit, memory, table, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsm.wire.environments import EnvironmentRow, PreloadReport, SlowImport


def environments_table(rows: Sequence[EnvironmentRow], home: str, width: int | None = None) -> str:
    """The table of `nsm env`."""
    if not rows:
        return "No environments."
    return table(
        "NAME INTERPRETER LIMIT MEMORY SOURCE DESCRIPTION".split(),
        (
            (
                ", ".join((row.name or "-", *row.aliases)),
                row.interpreter or "-",
                limit(row.timeout_s) if row.interpreter else "-",
                f"{row.memory_mb} MiB" if row.interpreter else "-",
                below_home(row.source, home),
                _environment_note(row),
            )
            for row in rows
        ),
        right="LIMIT MEMORY",
        width=width,
        least="INTERPRETER",
    )


def _environment_note(row: EnvironmentRow) -> str:
    only = f" [only for {row.only_for}]" if row.only_for else ""
    only += f" [in place of {', '.join(row.hides)}]" if row.hides else ""
    if not row.available:
        # What failed and the cause; `nsm env show NAME` has the log's end, too.
        problem = " ".join((row.problem or "").splitlines()[:2])
        return f"unavailable: {problem}{only}"
    separator = ", " if row.description else ""
    preloaded = _preloaded(row)
    preload = f"{separator}with {', '.join(preloaded)}" if preloaded else ""
    if preloaded and (sizes := [each.memory_bytes or 0 for each in row.templates]):
        preload += f" ({memory(sum(sizes))})"
    stateless = "" if row.keeps_state else " (no sessions)"
    cold = f" (starts slowly: {row.cold_start})" if row.cold_start else ""
    cold += f" (not preloaded: {'; '.join(row.not_preloaded)})" if row.not_preloaded else ""
    return f"{row.description}{preload}{stateless}{cold}{only}"


def environment_details(row: EnvironmentRow) -> list[tuple[str, str]]:
    """All that is known of one, as names and texts for `listing`."""
    lines = [("name", ", ".join((row.name or "-", *row.aliases)))]
    if row.available:
        lines += [
            (
                "interpreter",
                f"{row.interpreter}, {row.program}" if row.program else row.interpreter,
            ),
            ("limits", f"{limit(row.timeout_s)} a run, {row.memory_mb} MiB a session"),
        ]
    lines.append(("source", row.source))
    optional = [
        ("description", row.description),
        ("unavailable", row.problem),
        ("preloaded", ", ".join(_preloaded(row))),
        ("not preloaded", "\n".join(row.not_preloaded)),
        ("templates", "\n".join(_templates(row))),
        ("sessions", None if row.keeps_state or not row.available else "none: single runs only"),
        ("starts slowly", row.cold_start),
        ("devices", _devices(row)),
        ("only for", row.only_for),
        ("in place of", ", ".join(row.hides)),
    ]
    lines += [(name, text) for name, text in optional if text]
    # What nix said has lines of its own.
    return [
        (name if number == 0 else "", line)
        for name, text in lines
        for number, line in enumerate(text.splitlines() or [""])
    ]


def _devices(row: EnvironmentRow) -> str:
    nodes = f": {', '.join(row.device_nodes)}" if row.device_nodes else ""
    return ", ".join(row.devices) + nodes


def _templates(row: EnvironmentRow) -> list[str]:
    lines: list[str] = []
    for each in row.templates:
        size = "?" if each.memory_bytes is None else memory(each.memory_bytes)
        where = f" for {each.project}" if each.project else ""
        times = ", ".join(f"{module} in {took:.2f} s" for module, took in each.imported.items())
        lines.append(f"{size}{where}" + (f", imported {times}" if times else ""))
    return lines


def _preloaded(row: EnvironmentRow) -> list[str]:
    """The modules that its sessions find imported."""
    failed = {text.partition(":")[0] for text in row.not_preloaded}
    return [module for module in row.preload if module not in failed]


def suggestions(rows: Sequence[EnvironmentRow]) -> list[str]:
    """A line for each module that sessions often wait for."""
    return [suggestion(row.name, slow) for row in rows for slow in row.slow_imports]


def suggestion(environment: str, slow: SlowImport) -> str:
    """Advice on a module that sessions often wait for."""
    took = f"`import {slow.module}` took {slow.seconds:.1f} s"
    often = f"in {slow.sessions} of the last {slow.of} sessions"
    return visible(f"{took} {often}: `nsm env preload {environment} {slow.module}`")


def preloads(report: PreloadReport) -> str:
    """Modules that an environment preloads after a change."""
    if not report.preload:
        return visible(f"{report.name} preloads nothing")
    known = report.imported
    modules = [
        f"{module} ({known[module]:.2f} s)" if module in known else module
        for module in report.preload
    ]
    text = f"{report.name} preloads {', '.join(modules)}"
    if report.memory_bytes is not None:
        text += f"; its template takes {memory(report.memory_bytes)}"
    return visible(text)


def not_preloaded(rows: Sequence[EnvironmentRow]) -> list[str]:
    """A line for each module that could not be preloaded."""
    lines = [f"{row.name}: not preloaded: {text}" for row in rows for text in row.not_preloaded]
    lines += [
        f"{row.name}: nothing is preloaded: {row.cold_start}"
        for row in rows
        if row.preload and row.cold_start
    ]
    return [visible(line) for line in lines]
