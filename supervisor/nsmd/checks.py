"""One thing that the doctor looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: of the thing, for people and programs.
        status: `fail` means that nsm cannot work, `warn` that part of it does not.
        detail: what was found.
        fix: what to do; empty when there is nothing to do.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""
