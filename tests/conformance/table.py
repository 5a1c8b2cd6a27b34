"""Reports as a table for people and as values for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from conformance.campaign import Report, Status

COLUMNS: tuple[Status, ...] = ("passed", "failed", "not applicable")


def table(reports: Iterable[Report]) -> str:
    """Cases by file and language, as a Markdown table."""
    counts: dict[tuple[str, str], Counter[Status]] = {}
    for report in sorted(reports, key=lambda each: (each.case.file, each.case.language)):
        key = (report.case.file, report.case.language)
        counts.setdefault(key, Counter())[report.status] += 1
    rows: list[tuple[str, ...]] = [("file", "language", "cases", *COLUMNS)]
    total: Counter[Status] = Counter()
    for (file, language), count in counts.items():
        rows.append((file, language, *_numbers(count)))
        total += count
    rows.append(("all", "", *_numbers(total)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    ruler = [
        "-" * width if column < 2 else "-" * (width - 1) + ":"
        for column, width in enumerate(widths)
    ]
    lines.insert(1, "| " + " | ".join(ruler) + " |")
    return "\n".join(lines)


def _numbers(count: Counter[Status]) -> tuple[str, ...]:
    return (str(count.total()), *(str(count[column]) for column in COLUMNS))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "| " + " | ".join(cells) + " |"


def failures(reports: Iterable[Report]) -> str:
    """Every failed case with what was expected and seen."""
    lines: list[str] = []
    for report in reports:
        if report.status == "failed":
            lines.append(f"{report.case.id}   ({report.case.spec})")
            lines += [f"    {problem}" for problem in report.problems]
    return "\n".join(lines)


def as_values(reports: Iterable[Report]) -> list[dict[str, Any]]:
    """Plain values, one for each case."""
    return [
        {
            "case": report.case.id,
            "file": report.case.file,
            "name": report.case.name,
            "language": report.case.language,
            "spec": report.case.spec,
            "target": report.target,
            "status": report.status,
            "problems": list(report.problems),
            "note": report.note,
            "duration_s": round(report.duration_s, 3),
        }
        for report in reports
    ]
