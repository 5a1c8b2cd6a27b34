"""Records of each kind that the supervisor keeps, as one version writes them.

`python tests/support/record_samples.py` writes those of this version into a file, once: a release
has one, and every later version must read it (`tests/supervisor/app/test_startup.py`).
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from nsm._version import __version__
from nsmd.app.startup import KINDS
from nsmd.fdstore import records
from nsmd.fdstore.records import EndRecord

ALL: Mapping[str, type[Any]] = {**KINDS, "end-": EndRecord}
"""Kinds of records in the store, and in the files about ended sessions."""

KEPT = Path(__file__).resolve().parents[1] / "supervisor" / "app" / "kept_records"

_PLAIN: Mapping[Any, Any] = {str: "text", bool: True, int: 7, float: 1.5, Any: "any", object: "any"}


def samples() -> dict[str, list[str]]:
    """Two records of each kind, by the beginning of their names: with nothing but what must be
    there, and with all that can be."""
    return {
        prefix: [records.encode(_record(kind, full=full)).decode() for full in (False, True)]
        for prefix, kind in ALL.items()
    }


def _record(kind: Any, *, full: bool) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    given: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        needed = each.default is each.default_factory is dataclasses.MISSING
        if each.init and (full or needed):
            value = _value(hints[each.name], full=full)
            # What has its default is left out of a record.
            given[each.name] = not value if value is each.default is True else value
    return kind(**given)


def _value(hint: Any, *, full: bool) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Annotated:
        return _value(inner[0], full=full)
    if origin is Literal:
        return inner[-1]
    if origin in (Union, types.UnionType):
        if not full and types.NoneType in inner:
            return None
        return _value(next(each for each in inner if each is not types.NoneType), full=full)
    if origin is tuple and inner[1:] != (...,):
        return tuple(_value(each, full=full) for each in inner)
    if origin in (tuple, list, frozenset):
        several = [_value(inner[0], full=full)] if full else []
        return cast("Callable[[list[Any]], Any]", origin)(several)
    if isinstance(origin or hint, type) and issubclass(origin or hint, Mapping):
        return {"key": _value(inner[1], full=full)} if full else {}
    return _record(hint, full=full)


if __name__ == "__main__":
    with (KEPT / f"{__version__}.json").open("x", encoding="utf-8") as file:
        json.dump(samples(), file, indent=1)
        file.write("\n")
