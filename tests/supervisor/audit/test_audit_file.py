"""The audit's file: appended to, rotated, and what a full disk or somebody else does to it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from nsmd.audit.journal import AuditFile

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def opened(path: Path) -> Generator[Callable[[], AuditFile]]:
    """Files of 100 bytes, two of which are kept beside; closed in the end."""
    files: list[AuditFile] = []

    def make() -> AuditFile:
        files.append(AuditFile(str(path), max_bytes=100, keep=2))
        return files[-1]

    yield make
    for file in files:
        file.close()


def line(letter: str, length: int = 40) -> bytes:
    return letter.encode() * (length - 1) + b"\n"


def test_it_is_ours_alone_and_appended_to(path: Path, opened: Callable[[], AuditFile]) -> None:
    path.write_bytes(line("a", 10))
    path.chmod(0o644)
    opened().append(line("b", 10))
    assert path.read_bytes() == line("a", 10) + line("b", 10)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_larger_one_is_set_aside_and_the_oldest_deleted(
    path: Path, opened: Callable[[], AuditFile]
) -> None:
    file = opened()
    for letter in "abcdefgh":  # two fit into each
        file.append(line(letter))
    assert path.read_bytes() == line("g") + line("h")
    assert path.with_name("audit.jsonl.1").read_bytes() == line("e") + line("f")
    assert path.with_name("audit.jsonl.2").read_bytes() == line("c") + line("d")
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "audit.jsonl",
        "audit.jsonl.1",
        "audit.jsonl.2",
    ]


def test_a_line_longer_than_a_file_is_written_whole(
    path: Path, opened: Callable[[], AuditFile]
) -> None:
    file = opened()
    file.append(line("a", 500))
    file.append(line("b"))
    assert path.read_bytes() == line("b")
    assert path.with_name("audit.jsonl.1").read_bytes() == line("a", 500)


def test_two_supervisors_rotate_together(path: Path, opened: Callable[[], AuditFile]) -> None:
    first, second = opened(), opened()
    for letter in "abcdef":
        first.append(line(letter))
        second.append(line(letter.upper()))
    written = b"".join(
        path.with_name(name).read_bytes()
        for name in ("audit.jsonl.2", "audit.jsonl.1", "audit.jsonl")
    )
    assert written == b"".join(line(letter) for letter in "dDeEfF")


def test_nothing_is_kept_beside_where_none_is_wanted(path: Path) -> None:
    file = AuditFile(str(path), max_bytes=50, keep=0)
    file.append(line("a"))
    file.append(line("b"))
    file.close()
    assert [each.name for each in path.parent.iterdir()] == ["audit.jsonl"]
    assert path.read_bytes() == line("b")


def test_a_line_that_was_cut_does_not_cut_the_next(
    path: Path, opened: Callable[[], AuditFile]
) -> None:
    path.write_bytes(b'{"at": "2026')
    file = opened()
    file.append(line("a", 10))
    file.append(line("b", 10))
    assert path.read_bytes() == b'{"at": "2026\n' + line("a", 10) + line("b", 10)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_is_no_file_is_left_alone(
    path: Path, opened: Callable[[], AuditFile], kind: str
) -> None:
    other = path.with_name("other")
    other.write_bytes(b"")
    match kind:
        case "link":
            path.symlink_to(other)
        case "fifo":
            os.mkfifo(path)
        case _:
            path.mkdir()
    with pytest.raises(OSError, match=r"no file of ours\. Move it out of the way"):
        opened().append(line("a"))
    assert other.read_bytes() == b""


def test_a_file_that_was_removed_is_made_again(path: Path, opened: Callable[[], AuditFile]) -> None:
    file = opened()
    file.append(line("a"))
    path.unlink()
    file.append(line("b"))
    assert path.read_bytes() == line("b")
