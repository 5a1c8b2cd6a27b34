"""Directories that a box shows beside its own, by options and settings."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from box.world import HOME, OTHER_PROJECT, PROJECT, World
from nsmbox.consent import agreements
from nsmbox.host.added_directories import (
    MAX_NAMED,
    AddedDirectory,
    RequestedDirectory,
    in_arguments,
    in_settings,
    look,
    parse,
)
from nsmbox.model.plan import BoxError
from nsmbox.protection.secrets import Known, Secret
from realjail import needs_bwrap
from terminal import Terminal

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
        ("/etc/passwd", "is not a directory"),
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
def test_directories_that_no_box_shows_are_refused(host: Host, text: str, why: str) -> None:
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
def test_directories_within_others_are_left_out(
    host: Host, texts: list[str], left: list[tuple[str, bool]]
) -> None:
    expected = [(os.path.normpath(f"home/work/{name}"), writable) for name, writable in left]
    assert host.look(*texts)[0] == expected


def test_the_agents_own_directory_is_not_added(host: Host) -> None:
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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("shop/sub", "lib", "docs", "kept", "a,b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("lib")
    return tmp_path / "shop"


@pytest.mark.parametrize(
    ("agent", "arguments", "found", "passed"),
    [
        ("claude", ["--add-dir", "../lib", "../docs", "-p", "x"], ["lib", "docs"], None),
        ("claude", ["--add-dir=../lib", "../docs"], ["lib"], None),
        ("claude", ["--add-dir", "../lib", "a prompt"], ["lib"], None),
        ("claude", ["-p", "--add-dir"], [], None),
        ("claude", ["--", "--add-dir", "../lib"], [], ["--", "--add-dir", "../lib"]),
        ("claude", ["--add-dir", "../link", ""], ["lib"], ["--add-dir", "{root}/lib", ""]),
        ("claude", ["--add-dir", "../none", "a\0b"], [], ["--add-dir", "../none", "a\0b"]),
        (
            "codex",
            ["--add-dir", "../lib", "../docs"],
            ["lib"],
            ["--add-dir", "{root}/lib", "../docs"],
        ),
        ("codex", ["exec", "--add-dir", "../lib", "--add-dir", "../docs"], ["lib", "docs"], None),
        ("gemini", ["--include-directories", "../lib,../docs"], ["lib", "docs"], None),
        ("gemini", ["--include-directories=../lib,../none"], ["lib"], None),
        ("opencode", ["--add-dir", "../lib"], [], ["--add-dir", "../lib"]),
        ("", ["--add-dir", "../lib"], [], ["--add-dir", "../lib"]),
    ],
)
def test_arguments_name_directories(
    project: Path, agent: str, arguments: list[str], found: list[str], passed: list[str] | None
) -> None:
    words, asked = in_arguments(agent, arguments, str(project))
    root = str(project.parent)
    assert [os.path.relpath(each.path, root) for each in asked] == found
    assert all(each.writable for each in asked)
    assert len(words) == len(arguments)
    if passed is not None:
        assert list(words) == [word.replace("{root}", root) for word in passed]


CLAUDE = {"permissions": {"additionalDirectories": ["../lib", "../none", 3, "", "a\0b", "../link"]}}
FILES = {
    "claude": ("settings.json", json.dumps(CLAUDE)),
    "codex": ("config.toml", "[sandbox_workspace_write]\nwritable_roots = ['{root}/lib']\n"),
    "gemini": ("settings.json", '{"context": {"includeDirectories": ["../lib"]}}'),
}


@pytest.mark.parametrize("agent", FILES)
@pytest.mark.parametrize("where", ["kept", "shop"])
def test_settings_name_directories(project: Path, agent: str, where: str) -> None:
    root = project.parent
    name, text = FILES[agent]
    file = root / where / (name if where == "kept" else f".{agent}/{name}")
    file.parent.mkdir(exist_ok=True)
    file.write_text(text.replace("{root}", str(root)))
    asked = in_settings(agent, str(project), str(root / "kept"))
    assert asked == (RequestedDirectory(path=str(root / "lib"), writable=True, by=str(file)),)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "3", "null", '{"permissions": 3}', '{"permissions": []}'),
        '{"permissions": {"additionalDirectories": "../lib"}}',
        '{"permissions": {"additionalDirectories": {"../lib": true}}}',
        "[" * 100_000,
        '{"permissions": {"additionalDirectories": ["../lib"]}}' + " " * 1024 * 1024,
    ],
)
def test_nonsense_names_nothing(project: Path, text: str) -> None:
    (project / ".claude").mkdir()
    (project / ".claude/settings.json").write_text(text)
    assert in_settings("claude", str(project), None) == ()


def test_settings_are_no_links_and_no_pipes(project: Path) -> None:
    (project / ".claude").mkdir()
    (project.parent / "other.json").write_text(json.dumps(CLAUDE))
    (project / ".claude/settings.json").symlink_to(project.parent / "other.json")
    os.mkfifo(project / ".claude/settings.local.json")
    assert in_settings("claude", str(project), None) == ()


def test_not_too_many_are_looked_at(project: Path) -> None:
    names = [f"d{number}" for number in range(MAX_NAMED + 10)]
    for name in names:
        (project / name).mkdir()
    (project / ".claude").mkdir()
    settings = {"permissions": {"additionalDirectories": names}}
    (project / ".claude/settings.json").write_text(json.dumps(settings))
    assert len(in_settings("claude", str(project), None)) == MAX_NAMED


def test_answers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert agreements.answer_to("/p", "add /x") is None
    for number in range(agreements.MAX_ANSWERS):
        agreements.remember_answer("/p", f"q{number}", yes=False)
    agreements.remember_answer("/p", "add /x", yes=True)
    assert agreements.answer_to("/p", "add /x") is True
    assert agreements.answer_to("/p", "q0") is None, "the oldest"
    assert agreements.answer_to("/p", "q1") is False
    assert agreements.answer_to("/q", "add /x") is None
    for broken in ("", "3", '{"answers": 3}', '{"answers": [[1]]}', "[" * 100_000):
        (tmp_path / "nsm/boxes.json").write_text(broken)
        assert agreements.answer_to("/p", "add /x") is None
    agreements.remember_answer("/p", "add /x", yes=True)
    (tmp_path / "nsm/boxes.json").chmod(0o666)
    assert agreements.answer_to("/p", "add /x") is None, "somebody else could have written it"


@pytest.mark.slow
@pytest.mark.jail
@needs_bwrap
def test_claudes_option_gives_the_box_that_directory(world: World) -> None:
    world.link(f"{HOME}/short", "other")
    script = ("sh", "-c", f"echo x >{OTHER_PROJECT}/new")
    done = world.run("claudebox", "--yes", "--add-dir", "../short", "--verbose", "run", *script)
    assert done.returncode == 0, done.stderr
    assert world.host(f"{OTHER_PROJECT}/new").exists()
    done = world.run("claudebox", "--yes", "--add-dir", "../short", "x")
    assert f"<--add-dir>\n<{OTHER_PROJECT}>\n<x>\n" in done.stdout
    for wrong in ("~/.ssh", HOME):
        done = world.run("claudebox", "--yes", "--add-dir", wrong.replace("~", HOME), "x")
        assert done.returncode == 2
        assert "--add-dir: " in done.stderr


@pytest.mark.jail
@needs_bwrap
def test_settings_are_asked_about_once_and_never_taken_silently(world: World) -> None:
    names = ["../other", f"{HOME}/.ssh", HOME, "/"]
    settings = {"permissions": {"additionalDirectories": names}}
    world.write(f"{PROJECT}/.claude/settings.json", json.dumps(settings))
    look = ("run", "ls", OTHER_PROJECT)
    done = world.run("claudebox", "--yes", *look)
    assert done.returncode == 2
    assert (
        "~/project/.claude/settings.json names ~/other, which the box does not have" in done.stderr
    )
    assert done.stderr.count("not shown: ") == 3
    for typed, shown in (("n", False), ("y", True)):
        world.host(f"{HOME}/.local/state/nsm/boxes.json").unlink(missing_ok=True)
        with Terminal(
            world.command("claudebox", *look), world.variables, rows=40, columns=100
        ) as terminal:
            terminal.see("names a directory that the box would not have: ~/other", "[n]o:")
            terminal.type(f"{typed}\r")
            terminal.see("Start it?", "[n]o:")
            asked = terminal.text.partition("A box for")[2]
            assert ("~/other" in asked) is shown
            terminal.type("o\r")
            assert (terminal.end() == 0) is shown
        assert (world.run("claudebox", "--yes", *look).returncode == 0) is shown
