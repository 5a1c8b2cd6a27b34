"""Output on macOS, made by everything but the platform itself."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from box.world import HOME, PROJECT

if TYPE_CHECKING:
    from box.world import World

AS_ON_MACOS = """\
import sys

from nsmbox.cli.claudebox import main

sys.platform = "darwin"
sys.exit(main())
"""


def test_dry_run(world: World) -> None:
    """Facts and plan are the real ones; no supervisor is asked and nothing is made."""
    program = [sys.executable, "-c", AS_ON_MACOS, "--dry-run", "--version"]
    done = world.run(*program, variables={"OTHER_TOKEN": "not told"})
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "/usr/bin/sandbox-exec -p '(version 1)\n(deny default)" in text
    assert f'(allow file-write* (subpath "{PROJECT}"))' in text
    assert f"CLAUDE_CONFIG_DIR={HOME}/.claudebox" in text
    assert "bwrap" not in text
    assert "sk-ant-of-ada" not in text
    assert 'ANTHROPIC_API_KEY="$ANTHROPIC_API_KEY"' in text
    parsed = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")


def test_without_its_program_it_says_so(world: World) -> None:
    """The box's own files are made and removed: there is no `sandbox-exec` here."""
    temporary = world.make_directory(f"{HOME}/tmp")
    done = world.run(
        *(sys.executable, "-c", AS_ON_MACOS, "--yes", "--version"),
        variables={"TMPDIR": f"{HOME}/tmp"},
    )
    assert done.returncode == 1
    assert "/usr/bin/sandbox-exec cannot be executed: No such file or directory" in done.stderr
    assert list(temporary.iterdir()) == []
