"""Paths that may be executed, may be shown, or can be reached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsmd.host.paths import trusted_owners, why_unreachable, why_untrusted
from realjail import open_directory

ME = os.geteuid()


def program(folder: Path, mode: int = 0o755) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "tool"
    file.touch()
    file.chmod(mode)
    return str(file)


def test_a_file_or_directory_that_everyone_can_change_is_not(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", 0o777)
    assert why_untrusted(path, {0, ME}) == f"{path} is writable by everyone"
    path = program(tmp_path / "a/b/bin")
    (tmp_path / "a").chmod(0o777)
    assert why_untrusted(path, {0, ME}) == f"{tmp_path / 'a'} is writable by everyone"


def test_another_owner_is_not_trusted(tmp_path: Path) -> None:
    assert why_untrusted(program(tmp_path / "bin"), {ME + 1, 0} - {ME}) is not None


@pytest.mark.root
def test_a_group_that_can_only_add_to_a_directory_is_no_danger(tmp_path: Path) -> None:
    """Nix's store belongs to root and is writable by the group of its builders, and sticky."""
    path = program(tmp_path / "store/nix-2.18/bin")
    for group in (1, 4242):  # one that every system has, and one that none has
        os.chown(tmp_path / "store", -1, group)
        (tmp_path / "store").chmod(0o1775)
        assert why_untrusted(path, {0}) is None
        (tmp_path / "store").chmod(0o775)
        assert why_untrusted(path, {0}) == f"{tmp_path / 'store'} is writable by group {group}"


def test_in_a_user_namespace_the_hosts_root_is_the_overflow_user(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/overflowuid").write_text("65534\n")
    (tmp_path / "self/uid_map").write_text("      1000       1000          1\n")
    assert trusted_owners(str(tmp_path)) == {0, ME, 65534}
    (tmp_path / "self/uid_map").write_text("         0          0 4294967295\n")
    assert trusted_owners(str(tmp_path)) == {0, ME}


def test_a_path_is_reached_by_its_owner_only() -> None:
    stranger = ME + 4242
    with open_directory() as base:
        inner = base / "way" / "inner"
        inner.mkdir(parents=True)
        (base / "way").chmod(0o711)
        inner.chmod(0o755)
        assert why_unreachable(str(inner), stranger, stranger) is None
        (base / "way").chmod(0o700)
        reason = f"{base / 'way'} (mode 0700, owner {ME}) is closed to user {stranger}"
        assert why_unreachable(str(inner), stranger, stranger) == reason
        assert why_unreachable(str(inner), ME, stranger) is None
        (base / "way").chmod(0o711)
        inner.chmod(0o711)  # may be passed through, not listed
        assert "inner (mode 0711" in (why_unreachable(str(inner), stranger, stranger) or "")
        (base / "file").touch(mode=0o600)
        assert "file (mode 0600" in (why_unreachable(str(base / "file"), stranger, stranger) or "")
