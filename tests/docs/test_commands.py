"""Guides name commands, and options of them, that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nsm.cli.main import VERBS, load

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("[ht]*/*.md"))]
COMMAND = re.compile(r"(?:`|\$ |\n\n {4})nsm ([a-z][a-z0-9]*)((?: --?[a-z][a-z-]*)*)")


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_commands_and_options_exist(page: Path) -> None:
    for verb, options in COMMAND.findall(page.read_text(encoding="utf-8")):
        assert verb in VERBS, verb
        assert set(options.split()) <= set(load(verb).parser().options()), (verb, options)
