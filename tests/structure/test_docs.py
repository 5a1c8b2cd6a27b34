"""Links between pages lead to files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pages

ROOT = Path(__file__).resolve().parents[2]
MADE = {pages.DOCS / f"{name}.md" for name in pages.PAGES}
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - MADE)


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} links to {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken
