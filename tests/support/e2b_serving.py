"""`nsm e2b serve`, also for E2B's own clients with a supervisor of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from e2e_support import end_supervisor, program, supervisor

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

CONFIG = f"""
[environments.science]
preset = "python"
interpreter = "{sys.executable}"
"""
"""An environment with this Python, which has matplotlib."""

PATIENCE_S = 120.0


@contextmanager
def serving(*options: str) -> Generator[tuple[Supervisor, dict[str, str]]]:
    """Serve; what is given is the supervisor, which may be killed, and the variables of clients."""
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as path,
        # Not in the other, the supervisor's HOME, which no sandbox sees.
        tempfile.TemporaryDirectory(prefix="nsm-") as home,
        supervisor(Path(path), config=CONFIG, keep=True) as it,
    ):
        Path(home).chmod(0o755)
        try:
            with e2b_server(it, "--project", home, *options) as (_, variables):
                yield it, variables
        finally:
            end_supervisor(it.socket)


@contextmanager
def e2b_server(
    it: Supervisor, *options: str
) -> Generator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A server of a supervisor's sandboxes, and the variables of clients."""
    process = subprocess.Popen(
        [program("nsm"), "e2b", "serve", "-l", "127.0.0.1:0", *options],
        env=it.variables | {"XDG_CACHE_HOME": str(it.directory / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd="/",
    )
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        variables: dict[str, str] = {}
        for _ in range(3):
            line = process.stdout.readline()
            assert line.startswith("export "), process.stderr.read()
            name, _, value = line.removeprefix("export ").strip().partition("=")
            variables[name] = value
        watchdog.cancel()
        yield process, variables
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors, errors
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()
