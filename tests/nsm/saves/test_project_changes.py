"""Changes of a copied project in a save: what is looked at on the host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.saves.project_changes import facts

if TYPE_CHECKING:
    from pathlib import Path


def test_nothing_behind_a_link_is_looked_at(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "a").mkdir(parents=True)
    (project / "a" / "file").write_text("mine")
    (tmp_path / "secret").write_text("secret")
    (project / "way").symlink_to("..")
    (project / "link").symlink_to("../secret")
    os.mkfifo(project / "pipe")
    found = facts(str(project), "a/file")
    assert found is not None
    assert found.type == "file"
    assert facts(str(project), "way/secret") is None
    assert facts(str(project), "link") == ("symlink", "../secret")
    assert facts(str(project), "pipe") == ("special", "")
    assert facts(str(project), "a") == ("directory", "")
    assert facts(str(project), "none") is facts(str(tmp_path / "gone"), "a") is None
