"""A run's raw numbers in a file, and several runs beside each other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from measure import Comparison, Curve, Distribution, Finding, LeftOut, Machine, Target

VERSION = 2
"""Version of the file; a reader refuses another one."""

TOLERANCE = 0.2
"""How far apart the ratios of several runs may be, as a part of the smallest."""

FAR = 2.0
"""A ratio so many times better than its target cannot miss it for being unsteady."""

KINDS: Mapping[str, type[Finding]] = {
    "comparison": Comparison,
    "distribution": Distribution,
    "curve": Curve,
    "left out": LeftOut,
    "machine": Machine,
}


class RecordError(Exception):
    """A file is no record of a run; the message names it."""


def to_json(findings: Iterable[Finding]) -> str:
    """All that was measured, durations and sizes of this machine included."""
    names = {kind: name for name, kind in KINDS.items()}
    rows = [{"kind": names[type(row)], **dataclasses.asdict(row)} for row in findings]
    return json.dumps({"version": VERSION, "findings": rows}, ensure_ascii=False, indent=1) + "\n"


def from_json(text: str) -> list[Finding]:
    """Read the text that `to_json` wrote.

    Raises:
        ValueError, KeyError, TypeError: it did not write that.
    """
    record = json.loads(text)
    if record["version"] != VERSION:
        raise ValueError(f"version {record['version']}, expected {VERSION}")
    return [finding(row) for row in record["findings"]]


def finding(row: dict[str, Any]) -> Finding:
    """One of them."""
    fields = {key: tuples(value) for key, value in row.items() if key != "kind"}
    if (target := fields.get("target")) is not None:
        fields["target"] = Target(**target)
    return KINDS[row["kind"]](**fields)


def tuples(value: Any) -> Any:
    """JSON has lists where the values have tuples."""
    return tuple(tuples(item) for item in value) if is_list(value) else value


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether a value is a list. Type checkers then take items from JSON as unknown."""
    return isinstance(value, list)


def read(path: Path) -> list[Finding]:
    """A record from a file.

    Raises:
        RecordError: there is none.
    """
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path} is no record of `make bench ARGS='--json FILE'`: {error}"
        ) from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One row of the table in several runs.

    Attributes:
        ratios: one for each run; None where the run has no such row.
    """

    row: Comparison
    ratios: tuple[float | None, ...]

    @property
    def apart(self) -> float:
        """How much larger the largest is than the smallest, as a part of the smallest."""
        known = [ratio for ratio in self.ratios if ratio is not None]
        if max(known) == 0:
            return 0.0
        return max(known) / min(known) - 1 if min(known) > 0 else float("inf")

    @property
    def verdict(self) -> str:
        """Words that say whether the runs agree."""
        if None in self.ratios:
            return "not in every run"
        if self.apart <= TOLERANCE:
            return "agree"
        if self.far_within_target:
            return "apart, far within the target"
        return "APART"

    @property
    def far_within_target(self) -> bool:
        """True if each run is better than the target by `FAR`."""
        target = self.row.target
        if target is None:
            return False
        bound = target.value / FAR if target.bound == "≤" else target.value * FAR
        strict = Target(bound=target.bound, value=bound)
        return all(ratio is not None and strict.met(ratio) for ratio in self.ratios)


def agreements(runs: Sequence[Iterable[Finding]]) -> list[Agreement]:
    """Every row that any run has, in the order in which they appear first."""
    tables = [{identity(row): row for row in run if isinstance(row, Comparison)} for run in runs]
    rows = {key: row for table in reversed(tables) for key, row in table.items()}
    order = dict.fromkeys(key for table in tables for key in table)
    return [
        Agreement(
            row=rows[key],
            ratios=tuple(table[key].ratio if key in table else None for table in tables),
        )
        for key in order
    ]


def identity(row: Comparison) -> tuple[str, str, bool]:
    """Return the key by which rows of different runs are the same row."""
    return row.name, row.peer, row.floor
