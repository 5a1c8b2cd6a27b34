"""The peer: one command through `srt` of @anthropic-ai/sandbox-runtime, where it can be had.

npm installs it below `build/`, in the versions and with the hashes of `sandbox-runtime/`; nothing
is installed for anybody else. ripgrep, which it searches the working directory with, comes from npm
too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

NAME = "one command through sandbox-runtime's srt"
ROOT = Path(__file__).resolve().parents[2]
MANIFEST = Path(__file__).resolve().parent / "sandbox-runtime"
PLACE = ROOT / "build/bench/sandbox-runtime"
INSTALL_TIMEOUT_S = 120
RUN_TIMEOUT_S = 30
NEEDED = {
    "node": "install Node.js",
    "npm": "install npm",
    "socat": "install socat",
    "bwrap": "install bubblewrap",
}

SETTINGS = {
    "network": {"allowedDomains": list[str](), "deniedDomains": list[str]()},
    "filesystem": {"denyRead": list[str](), "allowWrite": ["."], "denyWrite": list[str]()},
}
"""The least: no network, writing to the working directory only."""


class SrtMissingError(Exception):
    """`srt` cannot be installed or does not run here; the message says why."""


@contextmanager
def srt(python: str) -> Generator[Callable[[], None]]:
    """A function that runs one Python statement through it.

    Raises:
        SrtMissingError: it cannot be installed or does not run here.
    """
    for program, advice in NEEDED.items():
        if shutil.which(program) is None:
            raise SrtMissingError(f"{program} is missing; {advice}")
    install()
    with tempfile.TemporaryDirectory(prefix="nsm-bench-srt-") as scratch:
        settings = Path(scratch, "settings.json")
        settings.write_text(json.dumps(SETTINGS), encoding="utf-8")
        work = Path(scratch, "work")
        work.mkdir()
        searched = [
            str(path.parent) for path in PLACE.glob("node_modules/@vscode/ripgrep-*/bin/rg")
        ]
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), *searched])
        command = [str(PLACE / "node_modules/.bin/srt"), "--settings", str(settings)]
        command += ["-c", shlex.join([python, "-I", "-S", "-c", "pass"])]

        def once() -> None:
            done = subprocess.run(
                command,
                cwd=work,
                env={**os.environ, "PATH": path, "HOME": scratch, "TMPDIR": scratch},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=RUN_TIMEOUT_S,
            )
            if done.returncode != 0:
                raise SrtMissingError(f"it does not run here: {last_line(done.stderr)}")

        once()
        yield once


def install() -> None:
    """Have it below `build/`.

    Raises:
        SrtMissingError: npm could not.
    """
    lock = (MANIFEST / "package-lock.json").read_bytes()
    stamp, digest = PLACE / "installed", hashlib.sha256(lock).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="ascii") == digest:
        return
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(MANIFEST / name, PLACE / name)
    # Its packages have no scripts that are needed, and none of anybody's is run.
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(
            command,
            cwd=PLACE,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise SrtMissingError(f"npm took more than {INSTALL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise SrtMissingError(f"npm cannot install it: {last_line(done.stderr)}")
    stamp.write_text(digest, encoding="ascii")


def last_line(text: str) -> str:
    """Return the last line that a program printed, for one line of ours."""
    return (text.strip().splitlines() or ["no reason given"])[-1]
