"""This clone of nsm, put into a test machine where the guest's environments of nsm expect it."""

from __future__ import annotations

import compileall
import io
import subprocess
import sys
import tarfile
from pathlib import Path

from guestimage import CLONES
from guestmachine import Guest

ROOT = Path(__file__).resolve().parent.parent

CLONE_OF = CLONES | {"bob": CLONES["root"]}
"""Clone of each user of the guest."""


GUESTS_PYTHON = (3, 11)


def install(guest: Guest, user: str) -> str:
    """Put this clone there for a user.

    Returns:
        Its directory in the guest, with a `.venv`.
    """
    clone = CLONE_OF[user]
    owner = next(name for name, path in CLONES.items() if path == clone)
    guest.run("tar", "-xf", "-", "-C", clone, user=owner, stdin=sources()).check()
    return clone


def sources() -> bytes:
    """This clone as an archive: what git knows, what it would take, and compiled modules."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    if sys.version_info[:2] == GUESTS_PYTHON:
        for folder in ("agent", "clients", "supervisor"):
            compileall.compile_dir(ROOT / folder, quiet=2)
    folders = {path.parent / "__pycache__" for path in files if path.suffix == ".py"}
    # The guest's Python takes what has the time of its source; it spares minutes of compiling.
    files += [path for folder in sorted(folders) for path in folder.glob("*.cpython-311.pyc")]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in files:
            if path.is_file() or path.is_symlink():
                tar.add(path, arcname=str(path.relative_to(ROOT)), recursive=False, filter=anyones)
    return archive.getvalue()


def anyones(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Modes as git has them: this host's umask is not the guest's."""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
