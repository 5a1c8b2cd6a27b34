"""Faults that `tools/house.py` finds; `make lint` runs it over the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import house

if TYPE_CHECKING:
    from pathlib import Path

REPR = "class Pool:\n    def __repr__(self) -> str:\n        return "


@pytest.mark.parametrize(
    ("text", "is_fault"),
    [
        *[
            (text, True)
            for text in (
                '"""What came of a call."""',
                '"""One that listens."""',
                'LIMIT_S: float = 1.0\n"""Whether it is there."""',
                'def some() -> None:\n    """Sends a message."""',
                REPR + 'f"<PoolPlan of {self.size}>"',
                REPR + 'f"<Keeper of {self.pool}, a Pool>"',
                "class Some: ...\nclass Some: ...",
                "\n" * 601,
            )
        ],
        *[
            (text, False)
            for text in (
                '"""Outcome of a call."""',
                '"""Socket of one session."""',  # begins like "So"
                'class Some:\n    LIMIT_S: float = 1.0\n    """Forks of a template."""',  # "For"
                'def some() -> None:\n    """Send a message."""',
                'def some() -> None:\n    """Names of hosts."""',
                REPR + '"<Pool>"',
                REPR + 'f"Pool({self.size})"',
                REPR + 'f"<{type(self).__name__} {self.size}>"',
                "class _Own: ...\nclass _Own: ...",
            )
        ],
    ],
)
def test_faults_are_found(tmp_path: Path, text: str, *, is_fault: bool) -> None:
    (tmp_path / "supervisor").mkdir()
    (tmp_path / "supervisor/some.py").write_text(text)
    assert bool(list(house.faults(tmp_path))) is is_fault
