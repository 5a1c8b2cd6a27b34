"""Steps of the VM test (nix/tests/vm.nix, not run here), checked on this host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import program

if TYPE_CHECKING:
    from e2e_support import Supervisor

pytestmark = pytest.mark.jail

CLIENT = Path(__file__).resolve().parents[1] / "support" / "vm_client.py"


def run(supervisor: Supervisor, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(CLIENT), *options, program("nsm-mcp")]
    return subprocess.run(
        command,
        env=supervisor.variables,
        cwd="/usr",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.slow
def test_the_main_job(shared: Supervisor) -> None:
    done = run(shared)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines[0] == "ok initialize: nsm"
    assert len(lines) == 16
    assert all(line.startswith("ok ") for line in lines)
