"""Pages that repeat what the code says are compared with it."""

from __future__ import annotations

import re
from pathlib import Path

import pages
from nsmd.model.lifecycle import TABLE, LifecycleEvent, SessionState

ROOT = Path(__file__).resolve().parents[2]
MADE = {pages.DOCS / f"{name}.md" for name in pages.PAGES}
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - MADE)


def test_the_life_cycle_page_is_the_table() -> None:
    rows = [
        f"| {state.value} | {event.value} | {following.value} | "
        f"{'; '.join(effect.value for effect in effects) or '—'} |"
        for (state, event), (following, effects) in TABLE.items()
        if state not in (SessionState.ENDING, SessionState.ENDED) or event is LifecycleEvent.GONE
    ]
    page = (ROOT / "docs/explanation/sessions.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| ")][2:] == rows


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} links to {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken
