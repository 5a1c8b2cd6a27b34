"""`nsm uninstall` leaves nothing, and every command succeeds."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from e2e_support import program, variables_for
from realjail import needs_bwrap

pytestmark = [needs_bwrap, pytest.mark.jail]


def test_uninstall_leaves_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="nsm-") as directory:
        home, runtime = Path(directory, "home"), Path(directory, "run")
        home.mkdir()
        runtime.mkdir(mode=0o700)
        variables = variables_for(home) | {
            "PATH": f"{os.path.dirname(program('nsm'))}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(runtime),
        }
        for name in ("NSM_SOCKET", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            del variables[name]
        (home / ".config/nsm").mkdir(parents=True)
        (home / ".config/nsm/config.toml").write_text("[defaults]\ntimeout_seconds = 20\n")

        def shell(code: str) -> str:
            return subprocess.run(
                ["sh", "-e", "-c", code],
                env=variables,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                timeout=60,
                check=True,
            ).stdout

        assert shell("nsm run -e python -s kept '6 * 7'") == "42\n"
        shell("nsm uninstall --yes")
        left = [path for place in (home, runtime) for path in place.rglob("*nsm*")]
        assert left == []
        assert not [path for path in home.rglob("*") if path.is_file()]
        shell("nsm uninstall --yes")  # with nothing there to remove
