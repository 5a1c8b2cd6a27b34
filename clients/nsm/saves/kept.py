"""Saves in nsm's own directory, below `nsm.paths.data_dir`."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from nsm import paths
from nsm.saves.reports import KeptSave, SaveError
from nsm.saves.save_file import opened

SUFFIX = ".nsmsave"

MAX_MB = 10 * 1024
"""Largest size of a save, and of all saves in nsm's directory together, unless more is allowed."""

STRANGERS_BYTES, STRANGERS_RATIO = 1 << 30, 20
"""Bytes that any file may unpack to that is not kept by nsm, and for a larger one the multiple of
its own size: a file of 6 MB can stand for 6 GiB of zeros, which take minutes."""

MAX_SESSION_CHARS = 50
"""Characters of a session's name in that of its automatic save."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def directory() -> str:
    """The directory of saves; it is made if it is missing."""
    # Without the links on its way, which are the user's own: saves are written through none.
    path = os.path.join(os.path.realpath(paths.data_dir()), "saves")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    paths.ensure_private_dir(path)
    return path


def path_of(name: str) -> str:
    """The file of the save of that name."""
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise SaveError(
            f"{name!r:.80} cannot be the name of a save",
            hint="Use up to 64 letters, digits, '_', '.' and '-', or a path with '/' in it.",
        )
    return os.path.join(directory(), name + SUFFIX)


def is_kept(path: str) -> bool:
    """Return whether a file is in nsm's own directory, where only its user can have put it."""
    return os.path.realpath(os.path.dirname(os.path.abspath(path))) == directory()


def most_unpacked(path: str) -> int:
    """Bytes that a save may unpack to, unless more is allowed."""
    if is_kept(path):
        return MAX_MB << 20
    return min(MAX_MB << 20, max(STRANGERS_BYTES, STRANGERS_RATIO * os.path.getsize(path)))


def name_of(path: str) -> str:
    """The name of the save in a file of nsm's own directory."""
    return os.path.basename(path).removesuffix(SUFFIX)


def found(named: str) -> str:
    """The file that somebody means by a name or a path."""
    path = named if "/" in named or os.path.isfile(named) else path_of(named)
    if not os.path.isfile(path) and (automatic := automatic_of(named)):
        if len({save.project for save in automatic}) > 1:
            names = ", ".join(save.name for save in automatic)
            raise SaveError(f"several sessions {named} are kept: {names}", hint="Name one of them.")
        return automatic[0].path
    if not os.path.isfile(path):
        raise SaveError(f"there is no save {named}", hint="`nsm save ls` lists your saves.")
    return path


def automatic_name(session: str, session_id: str) -> str:
    """The name of the automatic save of a session. Another session of that name has another."""
    return f"{session[:MAX_SESSION_CHARS]}.{session_id}"


def automatic_of(session: str) -> list[KeptSave]:
    """Automatic saves of sessions of a name, the newest first."""
    if not any(entry.startswith(f"{session[:MAX_SESSION_CHARS]}.") for entry in _entries()):
        return []  # mostly, and so without reading any
    return [save for save in listed() if save.automatic and save.session == session]


def _entries() -> list[str]:
    path = os.path.join(paths.data_dir(), "saves")
    return os.listdir(path) if os.path.isdir(path) else []


def drop_automatic(max_bytes: int) -> None:
    """Remove the oldest automatic saves until all saves have at most so many bytes."""
    for save in reversed(listed()):
        if used_bytes() <= max_bytes:
            return
        if save.automatic:
            with suppress(FileNotFoundError):
                os.unlink(save.path)


def listed() -> list[KeptSave]:
    """All saves, the newest first."""
    rows = list[KeptSave]()
    for entry in os.scandir(directory()):
        if not entry.name.endswith(SUFFIX) or entry.name.startswith("."):
            continue
        with suppress(FileNotFoundError):
            status = entry.stat()
            row = KeptSave(
                entry.name.removesuffix(SUFFIX), entry.path, status.st_size, status.st_mtime
            )
            try:
                with opened(entry.path) as save:
                    manifest = save.manifest
                    row = row._replace(
                        env=manifest.env,
                        session=manifest.session,
                        session_id=manifest.session_id,
                        project=manifest.project,
                        automatic=manifest.automatic,
                    )
            except (SaveError, OSError) as error:
                row = row._replace(problem=str(error))
            rows.append(row)
    return sorted(rows, key=lambda row: row.made_at, reverse=True)


def remove(name: str) -> None:
    """Remove a save."""
    try:
        os.unlink(path_of(name))
    except FileNotFoundError:
        hint = "`nsm save ls` lists your saves."
        raise SaveError(f"there is no save {name!r:.80}", hint=hint) from None


def used_bytes() -> int:
    """Bytes of all saves."""
    return sum(entry.stat().st_size for entry in os.scandir(directory()))
