"""The current directory as the project, and why it may be none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.client import places

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_name_that_is_not_utf_8_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(odd)
    monkeypatch.chdir(os.fsdecode(odd))
    assert places.current_project() is None
    assert "is not UTF-8" in places.why_no_project()
    assert "home directory" not in places.why_no_project()
