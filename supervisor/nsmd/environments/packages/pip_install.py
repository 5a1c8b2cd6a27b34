"""Program in the jail of a build: pip installs a lock from wheels that are kept, since its own
cache is of no use without network.

Standard library only, since it runs on the environment's own Python. `WHEELS LOCK COMMAND...
[--offline]`: WHEELS is the directory of kept wheels, COMMAND is pip's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile

_PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)\s*(;)?")
OFFLINE = "--offline"


def has_all(wheels: str, lock: str) -> bool:
    """Return whether there are wheels for all of a lock; a guess, since one may be for another
    Python.
    """
    there = {
        (_plain(each[0]), each[1])
        for name in os.listdir(wheels)
        if len(each := name.split("-")) > 1
    }
    with open(lock, encoding="utf-8") as file:
        pins = [pin for line in file if (pin := _PIN.match(line))]
    # What has a condition may be for other platforms.
    return all((_plain(pin[1]), pin[2]) in there for pin in pins if not pin[3])


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def fetch(wheels: str, lock: str, pip: list[str]) -> int:
    """Fetch all of a lock, and keep it. Returns pip's exit code."""
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", lock]
    with tempfile.TemporaryDirectory(dir=wheels, prefix=".") as new:
        ended = subprocess.run([*pip, "download", *options, "--dest", new], check=False).returncode
        for name in os.listdir(new):
            os.replace(os.path.join(new, name), os.path.join(wheels, name))
    return ended


def main() -> None:
    """Install a lock."""
    wheels, lock, *pip = sys.argv[1:]
    offline = pip[-1] == OFFLINE
    pip = [word for word in pip if word != OFFLINE]
    os.makedirs(wheels, exist_ok=True)
    install = [*pip, "install", "--no-index", "--find-links", wheels, "--require-hashes"]
    install += ["--no-deps", "--no-compile", "--no-warn-script-location", "-r", lock]
    install += ["--only-binary", ":all:"]
    if not offline:
        if has_all(wheels, lock):
            tried = subprocess.run(install, check=False, capture_output=True)
            if tried.returncode == 0:
                sys.stdout.buffer.write(tried.stdout)
                return
        if ended := fetch(wheels, lock, pip):
            sys.exit(ended)
    sys.exit(subprocess.run(install, check=False).returncode)


if __name__ == "__main__":
    main()
