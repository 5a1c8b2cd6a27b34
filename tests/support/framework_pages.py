"""Examples of docs/how-to, which need a framework."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs/how-to"
PRINTS = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


def examples(framework: str, page: str = "integrations.md") -> list[str]:
    """Return the Python blocks of a framework; fails if there is none."""
    block = re.compile(
        rf"^<!-- with {framework} -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
    )
    found = block.findall((PAGES / page).read_text())
    assert found, f"no example of {framework} on the page"
    return found


def prints(code: str) -> str:
    """Return what a block prints, as its comments say."""
    return "".join(f"{comment}\n" for comment in PRINTS.findall(code))
