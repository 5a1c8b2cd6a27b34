"""Results for people who ran code: notes about them, values as text, and pictures in files.

No name of a picture's file comes from a jail, and no file is overwritten.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nsm import below
from nsm.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TIMED_OUT
from nsm.cli.render.formats import duration, size, visible, visible_lines
from nsm.wire.code import split_place
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm.wire.code import RunResult

NOTICEABLE_WAIT_S = 1.0
"""Waiting for another execution of the session is told from here on."""


def run_notes(result: RunResult, *, fresh_name: bool, left_out: dict[str, int]) -> list[str]:
    """List the notes for the person who ran code, besides its output. A fresh name that was asked
    for is news; `left_out` are bytes of each stream that were not printed."""
    session = result.session
    notes: list[str] = []
    if session.replaced is not None:
        notes.append(
            f"session {session.name!r} is new: the earlier one {session.replaced}; "
            "variables and /workspace were lost"
        )
    elif fresh_name and session.name is not None:
        notes.append(f"the session is {session.name}; `-s {session.name}` goes on in it")
    if result.clamped_from_s is not None:
        notes.append(
            f"the limit is {result.timeout_s:g} s, not the {result.clamped_from_s:g} s asked for; "
            "config.toml can raise it"
        )
    if result.waited_s >= NOTICEABLE_WAIT_S:
        notes.append(f"waited {duration(result.waited_s)} for other executions of the session")
    for stream, missing in left_out.items():
        truncation = result.truncated.get(stream)
        where = ""
        if truncation is not None and truncation.file is not None:
            where = (
                f"; {truncation.where(f'{truncation.file} of the session')}"
                if session.name is not None
                else "; with a session (-s NAME) up to 64 MiB are kept in a file"
            )
        notes.append(f"{size(missing)} of {stream} left out{where}")
    if result.timed_out:
        longer = (
            "; -t sets the time limit, at most the environment's, and in a session (-s NAME) work "
            "can go on in the background"
        )
        notes.append(
            f"timed out after {result.timeout_s:g} s{longer if session.name is None else ''}"
        )
    if result.interrupted:
        notes.append("interrupted")
    if result.interpreter_restarted and session.name is not None:
        reason = f" ({result.restart_reason})" if result.restart_reason else ""
        notes.append(f"the interpreter was restarted{reason}; its variables were lost")
    notes += result.notes
    return [visible_lines(text) for text in notes]


def exit_code(result: RunResult) -> int:
    """Choose the exit code of the process."""
    if result.timed_out:
        return EXIT_TIMED_OUT
    if result.interrupted:
        return EXIT_INTERRUPTED
    # A process can say no more than 8 bits, and never that a failure was none.
    return result.exit_code & 0xFF or (EXIT_FAILED if result.exit_code else 0)


_TEXT_TYPES = ("text/plain", "text/markdown", "application/json", "text/html")
"""MIME types that can be printed, the plainest first."""

_SVG = "image/svg+xml"


ELSEWHERE = ": --json holds it"
"""End of a note on what a terminal cannot show; true of `nsm run`."""


class Picture(NamedTuple):
    """Picture to write to a file: type and size in words, extension without the dot, content."""

    what: str
    extension: str
    data: bytes


class Display(NamedTuple):
    """One displayed value: text that ends in a newline or is empty, its best picture, and notes on
    what cannot be shown."""

    text: str
    picture: Picture | None
    notes: list[str]


def display(bundle: Mapping[str, Any]) -> Display:
    """The parts of a display (MIME type to data) to show: those that stdout does not have."""
    bundle, place = split_place(bundle)
    text = _text(bundle) if place is None else ""
    picture, notes = _picture(bundle)
    media = [kind for kind in bundle if kind.startswith(("image/", "audio/", "video/"))]
    if picture is not None and place:
        picture = picture._replace(what=f"image {place}: {picture.what}")
    if picture is None and not notes and (media or (not text and place is None)):
        kinds = ", ".join(visible(kind) for kind in media or bundle) or "nothing"
        notes.append(f"displayed {kinds}{ELSEWHERE}")
    return Display(text if not text or text.endswith("\n") else text + "\n", picture, notes)


def _text(bundle: Mapping[str, Any]) -> str:
    for kind in _TEXT_TYPES:
        data = bundle.get(kind)
        if isinstance(data, str):
            return data
        if kind == "application/json" and data is not None:
            import json  # noqa: PLC0415  # 2 ms for a rare case

            return json.dumps(data, ensure_ascii=False)
    return ""


def _picture(bundle: Mapping[str, Any]) -> tuple[Picture | None, list[str]]:
    if not any(kind.startswith("image/") for kind in bundle):
        return None, []
    from nsm.wire.images import EXTENSIONS, BadImageError, decode  # noqa: PLC0415  # rarely needed

    notes: list[str] = []
    for kind, extension in EXTENSIONS.items():
        if kind in bundle:
            try:
                image = decode(kind, bundle[kind])
            except BadImageError as error:
                notes.append(f"displayed {kind}, which {error}")
            else:
                return Picture(f"{kind}, {image.dimensions}", extension, image.data), []
    svg = bundle.get(_SVG)
    if isinstance(svg, str):
        return Picture(_SVG, "svg", svg.encode(errors="replace")), []
    return None, notes


_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
"""Fails where anything has the name, a link that leads nowhere as well (open(2))."""


class Folder:
    """A directory for pictures, made at once where it is missing, and behind no link below the
    working directory; for None a fresh private one below the user's temporary directory, made when
    there is a picture."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        if directory is not None:
            with below.opened_around(directory, make=True) as (root, place):
                if place:
                    below.make_directories(root, place, mounts=True)
        self._number = 0

    def write(self, picture: Picture, stem: str) -> str:
        """Write a picture to a file with a new name that begins with `stem`, as far as that suits;
        returns its absolute path. Nothing is left of one that cannot be written."""
        descriptor, path = self._create(_safe(stem), picture.extension)
        try:
            with open(descriptor, "wb") as file:
                file.write(picture.data)
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise
        return path

    def _create(self, stem: str, extension: str) -> tuple[int, str]:
        if self._directory is None:
            import tempfile  # noqa: PLC0415  # 8 ms that only pictures pay

            self._directory = tempfile.mkdtemp(prefix="nsm-")
        while True:
            self._number += 1
            name = f"{stem}-{self._number}.{extension}"
            path = os.path.join(os.path.abspath(self._directory), name)
            try:
                # Code may have made the directory a link since.
                with below.opened_around(path) as (root, place):
                    return below.open_below(root, place, _NEW_FILE, 0o666, mounts=True), path
            except FileExistsError:
                continue


def _safe(stem: str) -> str:
    stem = "".join(character if character in _SAFE else "_" for character in stem)
    return stem.lstrip(".-") or "image"
