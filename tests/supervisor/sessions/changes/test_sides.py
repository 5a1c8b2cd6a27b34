"""Changes compared, applied and taken back, between directories that the tests have made.

An upper layer is a directory with overlayfs's marks, so none needs a jail. Here it is made by an
attacker; in `test_live.py` the kernel makes it.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from nsm import below
from nsmd.sessions.changes import AgreedChange, Change, application, comparison, review
from nsmd.sessions.changes.application import RENAME_EXCHANGE
from nsmd.sessions.changes.comparison import MAX_PATH_BYTES, Sides, change_at, compare


@dataclass
class World:
    """A project, the upper layer of a session, and a secret beside them."""

    host: Path
    upper: Path
    secret: Path
    sides: Sides

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """In the session; what it has copied from the host."""
        file = self.upper / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def on_host(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.host / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def delete(self, path: str) -> None:
        (self.upper / path).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(self.upper / path, stat.S_IFCHR, os.makedev(0, 0))

    def hide(self, path: str) -> None:
        (self.upper / path).mkdir(parents=True, exist_ok=True)
        os.setxattr(self.upper / path, "user.overlay.opaque", b"y")

    def compare(self) -> dict[str, Change]:
        return {change.path: change for change in compare(self.sides)}

    def kinds(self) -> dict[str, str]:
        return {path: change.kind for path, change in self.compare().items()}

    def wanted(self, *paths: str, risky: bool = False) -> list[AgreedChange]:
        return [
            AgreedChange(
                path=change.path,
                before=None if change.before is None else change.before.token,
                after=None if change.after is None else change.after.token,
                risky=risky,
            )
            for change in compare(self.sides)
            if not paths or change.path in paths
        ]

    def apply(
        self, wanted: list[AgreedChange] | None = None, *, force: bool = False
    ) -> dict[str, str]:
        """Explain why changes were not made, by path."""
        given = self.wanted() if wanted is None else wanted
        made, refused = application.apply(self.sides, given, None, force=force)
        assert made + len(refused) == len(given)
        return {each.path: each.why for each in refused}

    def tree(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.host)): path.read_text()
            for path in sorted(self.host.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    host, upper = tmp_path / "host", tmp_path / "upper"
    host.mkdir()
    upper.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (upper, host)]
    later_ns = time.time_ns() + 3600 * 10**9  # what tests make is older than the session
    yield World(
        host=host,
        upper=upper,
        secret=secret,
        sides=Sides(
            changed=fds[0],
            project=fds[1],
            since_ns=later_ns,
            applied={},
            linked=partial(comparison.find_linked, fds[1]),
        ),
    )
    for fd in fds:
        os.close(fd)


def test_each_kind_of_change_is_found_and_applied(world: World) -> None:
    world.on_host("same", "same")
    world.on_host("edited", "old")
    world.on_host("gone", "old")
    world.on_host("tool", "run", 0o644)
    world.on_host("tree/a/leaf", "leaf")
    world.on_host("tree/b", "b")
    world.on_host("anew/old", "old")
    world.on_host("anew/deep/old", "old")
    world.on_host("file-to-directory", "file")
    world.on_host("directory-to-file/x", "x")
    os.symlink("edited", world.host / "link")
    world.write("same", "same")
    world.write("edited", "new")
    world.delete("gone")
    world.write("tool", "run", 0o755)
    world.delete("tree")
    world.hide("anew")
    world.write("anew/deep/new", "new")  # below an opaque directory nothing of the host shows
    world.write("file-to-directory/y", "y")
    world.write("directory-to-file", "file")
    os.symlink("tool", world.upper / "link")
    world.write("added/deep/file", "added", 0o600)
    assert world.kinds() == {
        "added": "added",
        "added/deep": "added",
        "added/deep/file": "added",
        "anew/deep/new": "added",
        "anew/deep/old": "deleted",
        "anew/old": "deleted",
        "directory-to-file": "changed",
        "directory-to-file/x": "deleted",
        "edited": "changed",
        "file-to-directory": "changed",
        "file-to-directory/y": "added",
        "gone": "deleted",
        "link": "changed",
        "tool": "changed",
        "tree": "deleted",
        "tree/a": "deleted",
        "tree/a/leaf": "deleted",
        "tree/b": "deleted",
    }
    for path, change in world.compare().items():
        assert change_at(world.sides, path) == change
    assert change_at(world.sides, "same") is None
    assert change_at(world.sides, "nothing/here") is None
    assert world.apply() == {}
    assert world.tree() == {
        "added/deep/file": "added",
        "anew/deep/new": "new",
        "directory-to-file": "file",
        "edited": "new",
        "file-to-directory/y": "y",
        "link": "run",
        "same": "same",
        "tool": "run",
    }
    assert stat.S_IMODE((world.host / "tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((world.host / "added/deep/file").stat().st_mode) == 0o600
    assert world.compare() == {}


def test_no_mode_makes_a_program_run_as_its_owner_or_lets_others_write(world: World) -> None:
    world.on_host("shared", "old", 0o666)
    world.write("new", "x", 0o6777)
    world.write("shared", "new", 0o6777)
    assert world.apply() == {}
    assert stat.S_IMODE((world.host / "new").stat().st_mode) == 0o755
    assert stat.S_IMODE((world.host / "shared").stat().st_mode) == 0o777
    assert world.compare() == {}  # what would not be carried over is no change


def test_nothing_is_read_through_what_the_session_has_put_there(world: World) -> None:
    """Links, FIFOs, sockets, deep and odd names: listed, never followed or waited for."""
    os.symlink(world.secret, world.upper / "link")
    os.symlink(world.secret.parent, world.upper / "directory-link")
    os.mkfifo(world.upper / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world.upper / "socket"))
    (world.upper / os.fsdecode(b"odd\xff\n\x1b[2J")).write_text("odd")
    directory = world.upper
    fd = os.open(directory, os.O_RDONLY)
    for _ in range(40):  # deeper than a path can say
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    changes = world.compare()
    assert changes["fifo"].problem
    assert changes["socket"].problem
    assert "out of the project" in changes["link"].risk
    assert changes["link"].after is not None
    assert changes["link"].after.type == "symlink"
    assert not any(path.startswith("directory-link/") for path in changes)
    assert any("too deep" in change.problem for change in changes.values())
    assert all(len(os.fsencode(path)) <= MAX_PATH_BYTES for path in changes)
    refused = world.apply([each for each in world.wanted() if "d" * 200 not in each.path])
    assert set(refused) == {"fifo", "socket", "link", "directory-link"}
    assert sorted(os.listdir(world.host)) == [os.fsdecode(b"odd\xff\n\x1b[2J")]


@pytest.mark.skipif(os.geteuid() == 0, reason="not here: root reads everything")
def test_an_unreadable_file_is_told(world: World) -> None:
    world.write("closed", "x", 0)
    (world.upper / "shut").mkdir(0)
    world.write("listed/file", "x")
    (world.upper / "listed").chmod(0o400)
    world.write("open", "x")
    problems = {path: change.problem for path, change in world.compare().items()}
    assert "Permission denied" in problems["closed"]
    assert "Permission denied" in problems["shut"]
    assert "Permission denied" in problems["listed/file"]
    assert problems["open"] == ""
    for path in ("closed", "listed/file"):  # by itself, as it is among all
        change = change_at(world.sides, path)
        assert change == world.compare()[path]
        assert review.contents_of(world.sides, path).change == change
    assert "open" not in world.apply()
    for name in ("shut", "listed"):
        (world.upper / name).chmod(0o700)


def test_a_file_larger_than_the_disk_is_not_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holes and further names of a file take no room, and would be read for hours."""
    room = os.statvfs_result((4096, 4096, 16, 0, 0, 0, 0, 0, 0, 255))

    def no_room(_: int) -> os.statvfs_result:
        return room

    monkeypatch.setattr(os, "fstatvfs", no_room)
    world.write("a-huge", "x")
    os.truncate(world.upper / "a-huge", 1 << 42)
    world.write("name-0", "x" * 65536)
    for number in range(1, 10):
        os.link(world.upper / "name-0", world.upper / f"name-{number}")
    changes = world.compare()
    unread = {path for path, change in changes.items() if "room for" in change.problem}
    assert unread == {"a-huge", *(f"name-{number}" for number in range(4, 10))}
    assert set(world.apply()) == unread


def test_a_file_exchanged_while_it_is_shown_is_no_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("file", "x")

    def exchanged(root: int, path: str) -> int:
        (world.upper / "file").unlink()
        os.mkfifo(world.upper / "file")
        return below.open_file(root, path)

    monkeypatch.setattr("nsmd.sessions.changes.review.open_file", exchanged)
    assert review.contents_of(world.sides, "file").change is None


def test_paths_are_bounded_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_PATHS_BYTES", 100)
    for name in "abc":
        world.write(name * 30, "x")
    assert len(world.compare()) == 3
    world.write("d" * 30, "x")
    with pytest.raises(comparison.TooManyChangesError):
        world.compare()


def test_nothing_is_written_through_links_of_the_host(world: World) -> None:
    outside = world.secret.parent / "outside"
    outside.mkdir()
    os.symlink(outside, world.host / "into")
    os.symlink(world.secret, world.host / "file")
    world.write("into/new", "x")
    world.write("file", "x")
    (into,) = world.wanted("into/new")
    refused = world.apply([into])
    assert "a link is in the way" in refused["into/new"]
    assert world.apply(world.wanted("file")) == {}  # the link itself is what was changed
    assert world.secret.read_text() == "secret"
    assert not (world.host / "file").is_symlink()
    assert os.listdir(outside) == []


def test_changes_since_the_review_are_left_alone(world: World) -> None:
    world.on_host("host", "old")
    world.on_host("gone", "old")
    world.write("host", "new")
    world.write("session", "shown")
    world.write("new", "new")
    world.delete("gone")
    wanted = world.wanted()
    world.on_host("host", "by somebody")
    world.on_host("gone", "by somebody, too")
    world.on_host("new", "came to be")
    world.write("session", "another")
    refused = world.apply(wanted)
    assert set(refused) == {"gone", "host", "new", "session"}
    assert world.tree() == {"gone": "by somebody, too", "host": "by somebody", "new": "came to be"}


def test_changes_of_the_host_since_the_beginning_need_force(world: World) -> None:
    world.on_host("file", "by somebody")
    world.write("file", "new")
    world.sides = replace(world.sides, since_ns=time.time_ns() - 3600 * 10**9)
    assert "since the session began" in world.compare()["file"].conflict
    assert "since the session began" in world.apply()["file"]
    assert world.apply(force=True) == {}
    # What nsm itself has written is no news.
    world.write("file", "newer")
    assert world.compare()["file"].conflict == ""
    assert world.apply() == {}
    assert world.tree() == {"file": "newer"}


def test_a_risk_has_to_be_named(world: World) -> None:
    world.write(".git/hooks/pre-commit", "evil", 0o755)
    refused = world.apply()
    assert "has to be named" in refused[".git/hooks/pre-commit"]
    assert world.tree() == {}
    assert world.apply(world.wanted(".git/hooks/pre-commit", risky=True)) == {}
    assert world.tree() == {".git/hooks/pre-commit": "evil"}


def test_targets_of_links_with_risky_names_are_a_risk(world: World) -> None:
    for name in ("m.json", "ai/settings.json", "conf/vscode/tasks.json", ".git/x", ".claude/x"):
        world.on_host(name, "")
    (world.host / "packages/app").mkdir(parents=True)
    for name, target in {
        ".mcp.json": "m.json",
        ".envrc": "chain",
        "chain": "conf/absent/envrc",
        ".git/hooks": "../githooks",
        ".claude/settings.json": "../ai/settings.json",
        ".vscode": "conf/vscode",
        ".idea": "..",
        ".zed": ".zed",
        "link": "harmless",
        "packages/app/.mcp.json": "../../deep.json",
        "packages/app/all.code-workspace": "workspace.json",
    }.items():
        (world.host / name).symlink_to(target)
    risky = (
        *("ai/settings.json", "chain", "conf/absent/envrc", "conf/vscode/new.json"),
        *("deep.json", "githooks/pre-commit", "m.json", "packages/app/workspace.json"),
    )
    for name in (*risky, "harmless", "conf/harmless", "m.json.bak"):
        world.write(name, "x")
    assert [path for path, each in world.compare().items() if each.risk] == list(risky)
    assert world.compare()["m.json"].risk.endswith("(by the link .mcp.json)")
    (world.upper / "conf/absent/envrc").unlink()
    (world.upper / "conf/absent/envrc").symlink_to("../x")
    assert "direnv" in world.compare()["conf/absent/envrc"].risk  # it does not lead out
    (world.upper / "ai/settings.json").unlink()
    (world.upper / "ai").rmdir()
    (world.upper / "ai").symlink_to("elsewhere")
    assert world.compare()["ai"].risk


def test_a_file_that_is_mostly_harmless_is_a_risk_if_it_runs_something(world: World) -> None:
    world.write("Cargo.toml", '[dependencies]\nserde = "1"\n')
    world.write("a/Cargo.toml", '[package]\nbuild = "x.rs"\n')
    world.write("long/Cargo.toml", "#" * (1 << 20) + "\n")
    assert {path for path, each in world.compare().items() if each.risk} == {
        "a/Cargo.toml",
        "long/Cargo.toml",
    }
    assert set(world.apply()) == {"a/Cargo.toml", "long/Cargo.toml"}


def test_content_that_is_exchanged_while_it_is_looked_at_is_a_risk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content that came after the digest excuses nothing."""
    world.write("Cargo.toml", '[package]\nbuild = "x.rs"\n')
    digest = comparison.content_digest

    def digested(root: int, path: str, size: int) -> str:
        found = digest(root, path, size)
        world.write("Cargo.toml", "[package]\n")
        return found

    monkeypatch.setattr(comparison, "content_digest", digested)
    assert world.compare()["Cargo.toml"].risk


def in_between(monkeypatch: pytest.MonkeyPatch, flags: int, act: Callable[[], None]) -> None:
    """Do something right before a file takes the place of another."""
    rename = application.rename
    acted = False

    def acting(parent: int, old: str, new: str, given: int) -> None:
        nonlocal acted
        if given == flags and not acted:
            acted = True
            act()
        rename(parent, old, new, given)

    monkeypatch.setattr(application, "rename", acting)


def test_a_write_to_the_host_during_the_exchange_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.on_host("file", "old")
    world.write("file", "new")
    in_between(monkeypatch, RENAME_EXCHANGE, lambda: world.on_host("file", "saved just now"))
    assert "since it was shown" in world.apply()["file"]
    assert world.tree() == {"file": "saved just now"}


def test_a_file_that_the_session_writes_at_the_very_moment_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.on_host("file", "old")
    world.write("file", "shown")
    check = comparison.change_at

    def and_then(sides: Sides, path: str) -> Change | None:
        change = check(sides, path)
        world.write("file", "other")  # of the same length
        return change

    monkeypatch.setattr(application, "change_at", and_then)
    assert "changing it just now" in world.apply()["file"]
    assert world.tree() == {"file": "old"}


def test_a_directory_with_more_in_it_stays(world: World) -> None:
    world.on_host("tree/a", "a")
    world.delete("tree")
    wanted = world.wanted()
    world.on_host("tree/new", "of somebody")
    assert world.apply(wanted) == {"tree": "on the host there is more in it"}
    assert world.tree() == {"tree/new": "of somebody"}


@pytest.mark.root
def test_a_file_closed_to_the_projects_owner_is_not_given_back(world: World) -> None:
    """A session can delete it, and would have a copy of its own then."""
    user = (65530, 65530)
    world.on_host("of-root", "secret", 0o600)
    world.on_host("of-owner", "his", 0o600)
    world.delete("of-root")
    world.delete("of-owner")
    shown = world.secret.parent / "shown"
    shown.mkdir()
    for path in (shown, world.host, world.host / "of-owner"):
        os.chown(path, *user)
    fd = os.open(shown, os.O_RDONLY)
    try:
        changes = list(world.compare().values())
        gone, refused = application.discard(world.sides, fd, changes, user, user)
    finally:
        os.close(fd)
    assert (gone, [(each.path, each.why) for each in refused]) == (
        1,
        [("of-root", "Permission denied")],
    )
    assert os.listdir(shown) == ["of-owner"]


async def test_a_clock_that_was_set_back_does_not_hide_what_was_changed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    opened_ns = time.time_ns()
    session: Any = SimpleNamespace(
        created_s=trio.current_time() - 100, transcript=SimpleNamespace(opened_ns=opened_ns)
    )
    for now_s, begun_s in ((100, 0), (4000, 0), (-3500, -3600)):
        monkeypatch.setattr(time, "time_ns", lambda now_s=now_s: opened_ns + now_s * 10**9)
        assert abs(review.begun_ns(session) - (opened_ns + begun_s * 10**9)) < 10**9


def test_changes_are_taken_back(world: World) -> None:
    """Here in a plain directory, in place of the overlay."""
    world.on_host("edited", "old", 0o755)
    world.on_host("tree/a/leaf", "leaf")
    os.symlink("edited", world.host / "link")
    world.write("edited", "new")
    world.delete("tree")
    world.delete("link")
    world.write("added/file", "x")
    changes = list(world.compare().values())
    shown = world.secret.parent / "shown"
    (shown / "added").mkdir(parents=True)
    (shown / "added/file").write_text("x")
    (shown / "edited").write_text("new")
    fd = os.open(shown, os.O_RDONLY)
    try:
        gone, refused = application.discard(world.sides, fd, changes, None, None)
    finally:
        os.close(fd)
    assert (gone, refused) == (len(changes), [])
    assert {str(p.relative_to(shown)) for p in shown.rglob("*")} == {
        *("edited", "link", "tree", "tree/a", "tree/a/leaf")
    }
    assert (shown / "edited").read_text() == "old"
    assert stat.S_IMODE((shown / "edited").stat().st_mode) == 0o755
    assert os.readlink(shown / "link") == "edited"
