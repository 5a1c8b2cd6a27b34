"""Records of every version that may have left some: this one reads them all."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

import record_samples
from nsm._version import __version__
from nsmd.app.startup import KINDS, unreadable
from nsmd.fdstore import records
from nsmd.fdstore.records import to_plain
from nsmd.fdstore.store import KEPT_PREFIXES

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = sorted(record_samples.KEPT.glob("*.json"))
PLAIN = {"state-", "scope", "http-"}
"""Kinds without a record."""


def test_this_version_has_a_file_of_records() -> None:
    """A release writes it: `python tests/support/record_samples.py`."""
    assert f"{__version__}.json" in {path.name for path in VERSIONS}


def test_every_kind_has_samples() -> None:
    assert set(KINDS) == set(KEPT_PREFIXES) - PLAIN
    for prefix, texts in record_samples.samples().items():
        for text in texts:
            assert (
                records.encode(records.decode(record_samples.ALL[prefix], text.encode())).decode()
                == text
            )


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_records_of_a_version_are_read(path: Path) -> None:
    """A failure here would lose users their sessions: give a new field a default."""
    kept: dict[str, list[str]] = json.loads(path.read_text())
    for prefix, texts in kept.items():
        for text in texts:
            record = records.decode(record_samples.ALL[prefix], text.encode())
            # Nothing of it is lost when it is written again.
            assert to_plain(record) == records.outline(text.encode())
    in_store = ((prefix, text) for prefix in KINDS for text in kept.get(prefix, ()))
    assert unreadable(in_store) == {}


def test_records_that_this_version_cannot_use_are_named() -> None:
    (session, _), (spec, _) = (record_samples.samples()[each] for each in ("session-", "spec-"))
    newer = spec.replace("nsm-record 1 ", "nsm-record 9 ", 1)
    needs_it = session.replace('"spec":"text"', '"spec":"spec-text"')
    body = needs_it.partition("\n")[2].encode()
    needs_it = f"nsm-record 1 {hashlib.sha256(body).hexdigest()}\n{body.decode()}"
    found = unreadable([("session-1.1", needs_it), ("paint-1", session), ("spec-text", newer)])
    assert sorted(found) == ["paint-1", "session-1.1"]
    found = unreadable([("session-1.1", session), ("port-1", newer), ("template-1", newer)])
    assert list(found) == ["port-1"]
    assert "version 9" in found["port-1"]
