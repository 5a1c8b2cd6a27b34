"""Directories that are added to a box: which may be, and what several of them come to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nsmbox.host.added_directories import (
    AddedDirectory,
    RequestedDirectory,
    is_writable,
    look,
    parse,
)
from nsmbox.model.plan import BoxError
from nsmbox.protection.secrets import Known, Secret

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "path", "writable"),
    [
        ("../lib", "../lib", False),
        ("../lib:ro", "../lib", False),
        ("../lib:rw", "../lib", True),
        ("a,b c\nd", "a,b c\nd", False),
        ("a:b", "a:b", False),
        ("a:rw:ro", "a:rw", False),
        ("lib:RW", "lib:RW", False),
    ],
)
def test_an_ending_says_whether_it_can_be_changed(text: str, path: str, writable: bool) -> None:
    assert parse(text) == RequestedDirectory(path=path, writable=writable)


class Host:
    """A home with a project, which is the working directory, and places beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("home/work/shop/src", "home/work/lib/deep", "home/.ssh/keys", "data"):
            (root / name).mkdir(parents=True)
        self.home = str(root / "home")
        self.directory = str(root / "home/work/shop")
        self.known = Known(
            homes=(self.home,),
            secrets=(Secret(path=f"{self.home}/.ssh", name="~/.ssh", is_directory=True),),
        )

    def look(self, *texts: str) -> tuple[list[tuple[str, bool]], tuple[str, ...]]:
        added, notes = look(map(parse, texts), self.directory, self.known, self.home)
        assert [*added] == sorted(added, key=lambda each: each.path)
        return [(os.path.relpath(e.path, self.root), e.writable) for e in added], notes


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_relative_absolute_and_below_home(host: Host) -> None:
    for text in ("../lib", f"{host.home}/work/lib/", "~/work/lib", "../shop/../lib/."):
        assert host.look(text) == ([("home/work/lib", False)], ()), text


def test_odd_names_are_names(host: Host) -> None:
    for name in ("a,b", "a\nb", "a:b", "a b", "-x", "'", "\udcff", "x:rw"):
        path = host.root / "data" / name
        path.mkdir()
        assert host.look(f"{path}:rw")[0] == [(f"data/{name}", True)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no directory"),
        (":rw", "names no directory"),
        ("a\0b", "names no directory"),
        ("../none", "cannot be shown: No such file or directory"),
        ("/etc/passwd", "is no directory"),
        ("/etc/passwd/x", "cannot be shown: Not a directory"),
        ("/", "is the root of the file system"),
        ("/:rw", "is the root of the file system"),
        ("~", "is your home directory"),
        ("..//../", "is your home directory"),
        ("../../..", "holds your home directory"),
        ("~/.ssh", "is or lies in ~/.ssh, which no box shows"),
        ("~/.ssh/keys:ro", "is or lies in ~/.ssh, which no box shows"),
        ("/etc", "is or lies in /etc, which belongs to the system"),
        ("/proc/self", "is or lies in /proc, which belongs to the system"),
        ("/usr", "is shared by all programs of this host"),
        (".", "is the working directory, in which the box writes"),
    ],
)
def test_what_cannot_be_added(host: Host, text: str, why: str) -> None:
    with pytest.raises(BoxError) as refused:
        host.look(text)
    assert why in refused.value.message
    assert refused.value.exit_code == 2


def test_links_are_followed_and_said(host: Host) -> None:
    (host.root / "home/short").symlink_to("work/lib")
    (host.root / "home/keys").symlink_to(".ssh/keys")
    added, notes = host.look("~/short")
    assert added == [("home/work/lib", False)]
    assert notes == (f"~/short leads to {host.home}/work/lib, and is there in the box.",)
    with pytest.raises(BoxError, match="which no box shows"):
        host.look("~/keys")
    (host.root / "home/round").symlink_to("round")
    with pytest.raises(BoxError, match="Too many levels of symbolic links"):
        host.look("~/round")


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        (["../lib", "../lib:rw"], [("lib", True)]),
        (["../lib", "../lib/deep"], [("lib", False)]),
        (["../lib:rw", "../lib/deep:rw"], [("lib", True)]),
        (["../lib:rw", "../lib/deep"], [("lib", True), ("lib/deep", False)]),
        (["../lib", "../lib/deep:rw"], [("lib", False), ("lib/deep", True)]),
        ([".:rw", "src:rw"], []),
        (["src"], [("shop/src", False)]),
        (["..", "../lib"], [("", False)]),
    ],
)
def test_what_gives_nothing_more_is_left_out(
    host: Host, texts: list[str], left: list[tuple[str, bool]]
) -> None:
    expected = [(os.path.normpath(f"home/work/{name}"), writable) for name, writable in left]
    assert host.look(*texts)[0] == expected


def test_the_nearest_directory_decides() -> None:
    places = {"/a": True, "/a/b": False, "/a/b/c": True}
    for path, writable in (("/a/x", True), ("/a/b/x/y", False), ("/a/b/c", True), ("/b", None)):
        assert is_writable(places, path) is writable


def test_what_the_agent_keeps_stays_in_its_place(host: Host) -> None:
    kept = [f"{host.home}/work/lib/agent"]
    with pytest.raises(BoxError, match="what the agent keeps"):
        look([parse("../lib")], host.directory, host.known, host.home, kept=kept)
    assert look([parse("../lib/deep")], host.directory, host.known, host.home, kept=kept)[0] == (
        AddedDirectory(path=f"{host.home}/work/lib/deep", writable=False),
    )


def test_there_are_not_too_many(host: Host) -> None:
    names = [str(host.root / "data" / str(number)) for number in range(65)]
    for name in names:
        os.mkdir(name)
    assert len(host.look(*names[:64])[0]) == 64
    with pytest.raises(BoxError, match="at most 64"):
        host.look(*names)
