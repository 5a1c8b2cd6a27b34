"""Each promise of the page on security is tested: `promises.toml` names tests that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from isolation.probes import ALL

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/explanation/security.md").read_text(encoding="utf-8")
TESTS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("promises.toml").read_text(encoding="utf-8")
)
PROBES = {probe.name for probe in ALL}


def test_every_promise_of_the_page_is_tested() -> None:
    section = PAGE.split("\n## Promises\n")[1].split("\n## ", maxsplit=1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    promises = [row.strip("| ").split(" | ")[0] for row in rows]
    assert [re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text) for text in promises] == list(TESTS)


@pytest.mark.parametrize("promise", TESTS, ids=[promise[:60] for promise in TESTS])
def test_the_tests_of_a_promise_exist(promise: str) -> None:
    assert TESTS[promise]
    for name in TESTS[promise]:
        if not name.startswith("tests/"):
            assert name in PROBES, f"no probe {name}"
            continue
        path, _, test = name.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), name
