"""Links and messages of programs lead to pages and sections that there are."""

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


def test_pages_that_programs_name_are_there() -> None:
    missing = [
        f"{file.relative_to(ROOT)} names {page}"
        for folder in ("agent", "clients", "supervisor", "nix", "systemd", "monitoring")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".js", ".nix", ".py", ".service", ".yml"}
        for page in re.findall(r"docs/[\w/-]+\.md", file.read_text())
        if not (ROOT / page).exists() and ROOT / page not in MADE
    ]
    assert not missing


def test_links_to_sections_lead_somewhere() -> None:
    sections = {page: set(map(anchor, headings(page))) for page in PAGES}
    broken = [
        f"{page.relative_to(ROOT)} links to {target}#{name}"
        for page in PAGES
        for target, name in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
        if name not in sections.get((page.parent / target).resolve() if target else page, {name})
    ]
    assert not broken


def headings(page: Path) -> list[str]:
    """The headings of a page; comments in its examples are none."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    return re.findall(r"(?m)^#+ (.*)$", text)


def anchor(heading: str) -> str:
    """The name of a section in links, as GitHub and Sphinx make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
