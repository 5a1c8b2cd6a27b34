"""Search for files in /etc that programs in /usr need."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsm.jail.etc_files import MOST, linked_files


def link(root: Path, name: str, target: str) -> None:
    path = root / "usr" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def file(root: Path, name: str, mode: int = 0o644) -> None:
    path = root / "etc" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(mode)


def test_files_and_directories_that_links_lead_to(tmp_path: Path) -> None:
    for name in ("maven/m2.conf", "maven/settings.xml", "X11/rgb.txt", "X11/xorg.conf", "other"):
        file(tmp_path, name)
    link(tmp_path, "share/maven/conf", "/etc/maven")
    link(tmp_path, "share/maven/bin/m2.conf", "/etc/maven/m2.conf")  # shown with its directory
    link(tmp_path, "share/X11/rgb.txt", "../../../etc/X11/rgb.txt")
    link(tmp_path, "share/gone", "/etc/gone")
    link(tmp_path, "share/elsewhere", "/opt/etc/other")
    assert linked_files((), str(tmp_path)) == ("/etc/X11/rgb.txt", "/etc/maven")
    assert linked_files(("/etc/maven",), str(tmp_path)) == ("/etc/X11/rgb.txt",)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("java-17-openjdk", True), ("java", True), ("chromium.d", True), ("javascript", False)],
)
def test_directories_that_no_link_names(tmp_path: Path, name: str, shown: bool) -> None:
    file(tmp_path, f"{name}/x")
    assert linked_files((), str(tmp_path)) == ((f"/etc/{name}",) if shown else ())


@pytest.mark.parametrize(
    "name",
    ["shadow", "environment", "ssh/ssh_config", "ssl/private/key", "python3/sitecustomize.py"],
)
def test_files_about_the_host_or_its_people_stay_hidden(tmp_path: Path, name: str) -> None:
    file(tmp_path, name)
    file(tmp_path, "open")
    link(tmp_path, "share/x", f"/etc/{name}")
    link(tmp_path, "share/y", "/etc/by-way")
    (tmp_path / "etc/by-way").symlink_to(f"../etc/{name}")
    link(tmp_path, "share/z", "/etc/open")
    assert linked_files((), str(tmp_path)) == ("/etc/open",)


def test_a_whole_directory_stays_hidden_for_what_is_in_it(tmp_path: Path) -> None:
    for name in ("ssl/private/key", "ssl/misc", "pki/tls/private/key", "python3/sitecustomize.py"):
        file(tmp_path, name)
    targets = ("/etc/ssl", "/etc/ssl/misc", "/etc/pki", "/etc/pki/tls/", "/etc/python3")
    for number, target in enumerate(targets):
        link(tmp_path, f"local/{number}", target)
    assert linked_files((), str(tmp_path)) == ("/etc/ssl/misc",)


def test_files_that_not_everyone_can_read_stay_hidden(tmp_path: Path) -> None:
    file(tmp_path, "closed", 0o640)
    file(tmp_path, "wiki/config/password")
    (tmp_path / "etc/wiki").chmod(0o750)
    link(tmp_path, "share/closed", "/etc/closed")
    link(tmp_path, "share/wiki", "/etc/wiki/config")
    assert linked_files((), str(tmp_path)) == ()


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    for number in range(MOST + 1):
        file(tmp_path, str(number))
        link(tmp_path, f"share/{number}", f"/etc/{number}")
    assert len(linked_files((), str(tmp_path))) == MOST
