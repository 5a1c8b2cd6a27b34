"""The program of the archive that `nsm host setup` copies: installs nsm for one user.

    python3 ARCHIVE DIRECTORY

It is `__main__` of that archive, and runs on the other machine: standard library only, and nothing
of nsm's. It makes a virtual environment without pip, and puts the packages into it that are in the
archive. So neither a network nor a compiler is needed. It prints one line of JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import sys
import venv
import zipfile
from contextlib import suppress
from typing import Any

FACTS = "facts.json"
PACKAGES = "site/"

_SCRIPT = """\
#!/bin/sh
'''exec' {python} -sP "$0" "$@"
' '''
import sys
from {module} import {function}
sys.exit({function}())
"""
"""A program for sh and for Python: a path with spaces, or a long one, fits into no `#!` line."""


class _RefusedError(Exception):
    """The archive is for another Python, processor or C library."""


def main() -> None:
    """Install, and say how that ended."""
    answer: dict[str, object] = {"nsm-host": 1}
    try:
        directory = os.path.abspath(sys.argv[1])
        with zipfile.ZipFile(sys.argv[0]) as archive:
            install(archive, directory)
        answer |= {"installed": directory, "bwrap": shutil.which("bwrap")}
    except _RefusedError as error:
        answer["error"] = str(error)
    except OSError as error:
        answer["error"] = f"{error.filename or sys.argv[1]}: {error.strerror or error}"
    sys.stdout.write(json.dumps(answer) + "\n")


def install(archive: zipfile.ZipFile, directory: str) -> None:
    """Put the archive's packages into a directory, in place of what is there.

    Raises:
        OSError: it cannot be written; the directory is as it was.
    """
    facts = json.loads(archive.read(FACTS))
    _check(facts)
    new, old = f"{directory}.new", f"{directory}.old"
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    parent = os.open(os.path.dirname(directory), os.O_RDONLY)
    fcntl.flock(parent, fcntl.LOCK_EX)  # until this process ends: another laptop may install, too
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        venv.EnvBuilder(symlinks=True).create(new)
        packages = os.path.join(
            new, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages"
        )
        for entry in archive.infolist():
            if entry.filename.startswith(PACKAGES) and not entry.is_dir():
                entry.filename = entry.filename.removeprefix(PACKAGES)
                archive.extract(entry, packages)
        for name, place in facts["scripts"].items():
            _write_script(os.path.join(new, "bin", name), place, directory)
        with suppress(FileNotFoundError):
            os.rename(directory, old)
        os.rename(new, directory)
    finally:
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _check(facts: dict[str, Any]) -> None:
    wanted = tuple(facts["python"])
    if sys.version_info[:2] != wanted:
        raise _RefusedError(
            f"the archive is for Python {wanted[0]}.{wanted[1]}, and this is "
            f"{platform.python_version()}"
        )
    if platform.machine() != facts["machine"]:
        raise _RefusedError(
            f"the archive is for {facts['machine']}, and this machine is {platform.machine()}"
        )
    name, version = platform.libc_ver()
    least = tuple(facts["glibc"])
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) < least:
        raise _RefusedError(
            f"the archive needs glibc {least[0]}.{least[1]}, and this machine has "
            f"{name or 'another C library'} {version}"
        )


def _write_script(path: str, place: str, directory: str) -> None:
    module, _, function = place.partition(":")
    python = "'" + os.path.join(directory, "bin", "python3").replace("'", "'\\''") + "'"
    with open(path, "w", encoding="utf-8") as file:
        file.write(_SCRIPT.format(python=python, module=module, function=function))
    os.chmod(path, 0o755)


if __name__ == "__main__":
    main()
