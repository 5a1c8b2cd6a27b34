"""Displays as `nsm run` shows them, and the files for their pictures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import pictures
from nsm import below
from nsm.cli.render.results import Display, Folder, Picture, display
from nsm.wire.code import PLACE

if TYPE_CHECKING:
    from pathlib import Path

PNG, JPEG = pictures.png(), pictures.jpeg()
A_PNG = Picture("image/png, 4x3", "png", PNG)


@pytest.mark.parametrize(
    ("bundle", "shown"),
    [
        ({"text/plain": "42"}, Display("42\n", None, [])),
        ({"text/html": "<b>", "text/markdown": "**b**"}, Display("**b**\n", None, [])),
        ({"application/json": {"ä": [1]}}, Display('{"ä": [1]}\n', None, [])),
        (
            {"text/plain": "<F>", "image/svg+xml": "<svg/>", "image/png": pictures.text(PNG)},
            Display("<F>\n", A_PNG, []),
        ),
        (
            {"image/png": "AAAA", "image/svg+xml": "<svg>ä\ud800"},
            Display("", Picture("image/svg+xml", "svg", "<svg>ä?".encode()), []),
        ),
        (
            {"text/plain": "a", "image/webp": "AAAA"},
            Display("a\n", None, ["displayed image/webp: --json holds it"]),
        ),
        (
            {"text/plain": 5, "odd\x1b": 1},
            Display("", None, ["displayed text/plain, odd\\x1b: --json holds it"]),
        ),
        ({}, Display("", None, ["displayed nothing: --json holds it"])),
    ],
)
def test_a_display_is_shown_in_its_plainest_form(bundle: dict[str, Any], shown: Display) -> None:
    assert display(bundle) == shown


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    folder = Folder(str(target))
    (target / "work-1.png").write_text("mine")
    (target / "work-2.png").symlink_to(tmp_path / "elsewhere")
    (target / "work-3.png").mkdir()
    path = folder.write(A_PNG, "work")
    assert path == str(target / "work-4.png")
    assert folder.write(A_PNG._replace(extension="svg"), "work") == str(target / "work-5.svg")
    assert (target / "work-4.png").read_bytes() == PNG
    assert (target / "work-1.png").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("../../etc/x", "_.._etc_x-1.png"),
        ("-rf", "rf-1.png"),
        ("a b\nü\0", "a_b___-1.png"),
        ("python-amber-7", "python-amber-7-1.png"),
    ],
)
def test_names(tmp_path: Path, stem: str, name: str) -> None:
    assert Folder(str(tmp_path)).write(A_PNG, stem) == str(tmp_path / name)


def test_a_picture_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    real = below.open_below

    def into_a_full_device(*arguments: Any, **options: Any) -> int:
        os.close(real(*arguments, **options))
        return os.dup(full)

    folder = Folder(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(below, "open_below", into_a_full_device)
        with pytest.raises(OSError, match="No space left"):
            folder.write(A_PNG, "s")
    os.close(full)
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="exists"):
        Folder(__file__)


def test_values_that_stdout_has_in_place_are_shown_once() -> None:
    assert display({"text/plain": "t", "text/html": "<t>", PLACE: 0}) == Display("", None, [])
    shown = display({"text/plain": "caption", "image/svg+xml": "<svg/>", PLACE: 2})
    assert shown.text == ""
    assert shown.picture is not None
    assert shown.picture.what == "image 2: image/svg+xml"
