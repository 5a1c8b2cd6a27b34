"""The program that runs benchmarks ends what it started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

RUN = [sys.executable, str(Path(__file__).resolve().parents[2] / "benchmarks/run.py")]


def test_an_interrupted_run_says_so_and_leaves_nothing_behind() -> None:
    """tests/conftest.py looks for what is left."""
    with subprocess.Popen(
        [*RUN, "--only", "commands", "--rounds", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read(len("bench: commands ..."))
        assert said == b"bench: commands ..."
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate()
    assert process.returncode == 130, rest
    assert b"everything that was started is ended" in rest
