"""Build hook that writes the commit into what is built, for `nsm --version` (hatchling's API)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT_FILE = "nsm/_commit.txt"


class CommitHook(BuildHookInterface[Any]):
    """Adds the file with the commit to a wheel or source archive that is built from a clone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds; an editable install reads the clone's own git."""
        commit = os.environ.get("NSM_COMMIT") or head(self.root)
        if version == "editable" or not commit:
            return
        handle, self._path = tempfile.mkstemp(prefix="nsm-commit-")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(f"{commit}\n")
        place = COMMIT_FILE if self.target_name == "wheel" else f"clients/{COMMIT_FILE}"
        build_data["force_include"][self._path] = place

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling after it has built."""
        del version, build_data, artifact_path
        if path := getattr(self, "_path", ""):
            os.unlink(path)


def head(root: str) -> str:
    """The commit that is checked out, or an empty text where this is no clone."""
    if not (Path(root) / ".git").exists():
        return ""
    done = subprocess.run(
        ["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
