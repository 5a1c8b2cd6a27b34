"""Directories that may be mounted, their targets, and the one that is chosen."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from nsm.wire.errors import BadProjectError
from nsmd.host import event_loop
from nsmd.manager.projects import Projects, check_mount_point, check_project, choose_project
from nsmd.model.settings import ProjectSettings
from nsmd.model.values import ProjectMount


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with things in it."""
    home = tmp_path / "home" / "user"
    for name in ("code/app", ".ssh", ".aws", ".config/gcloud", ".config/app", ".local/share"):
        (home / name).mkdir(parents=True)
    (home / "code/file").touch()
    return home


def check(path: Path | str, home: Path, mount_point: str = "/project") -> ProjectMount:
    return check_project(str(path), mount_point, str(home))


def test_a_directory_in_home_is_a_project(home: Path) -> None:
    mount = check(home / "code/app", home)
    found = (home / "code/app").stat()
    assert mount == ProjectMount(
        path=str(home / "code/app"), mount_point="/project", device=found.st_dev, inode=found.st_ino
    )
    assert check("~/code/app", home) == mount
    assert check(f"{home}/code/../code//app/", home) == mount


def test_symlinks_are_resolved_before_anything_is_judged(home: Path) -> None:
    (home / "code/link").symlink_to(home / "code/app")
    assert check(home / "code/link", home).path == str(home / "code/app")
    (home / "code/evil").symlink_to(home / ".ssh")
    with pytest.raises(BadProjectError, match="ssh, which may hold secrets"):
        check(home / "code/evil", home)
    (home / "code/self").symlink_to("/proc/self/root")
    with pytest.raises(BadProjectError, match="root of the file system"):
        check(home / "code/self", home)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/", "root of the file system"),
        ("~", "is your home directory"),
        ("~/.ssh", "may hold secrets"),
        ("~/.aws/sub", "does not exist"),
        ("~/.config", "holds"),
        ("~/.config/gcloud", "may hold secrets"),
        ("~/.local/share", "keyrings, which may hold secrets"),
        ("~/code/file", "is not a directory"),
        ("~/code/missing", "does not exist"),
        ("~/code/file/below", "Not a directory"),
        ("code/app", "not an absolute path"),
        ("", "not an absolute path"),
        ("~other/code", "not an absolute path"),
        ("/etc", "belongs to the system"),
        ("/proc/self", "belongs to the system"),
        ("/sys/kernel", "belongs to the system"),
        ("/dev/shm", "belongs to the system"),
        ("/run", "sockets and secrets"),
        ("/x\0y", "null"),
    ],
)
def test_directories_that_are_no_projects_are_refused(path: str, why: str, home: Path) -> None:
    with pytest.raises(BadProjectError, match=why):
        check(path, home)


def test_a_directory_of_everyones_sockets_is_none() -> None:
    with pytest.raises(BadProjectError, match="sockets and secrets"):
        check("/tmp", Path("/home/user"))


def test_ancestors_of_home_are_none(home: Path) -> None:
    for ancestor in (home.parent, home.parent.parent):
        with pytest.raises(BadProjectError, match="holds your home directory"):
            check(ancestor, home)


def test_a_name_that_begins_alike_is_another_directory(home: Path) -> None:
    """CVE-2025-53110: `/work` and `/work-evil`."""
    (home / ".ssh-notes").mkdir()
    assert check(home / ".ssh-notes", home).path == str(home / ".ssh-notes")
    sibling = home.parent / "user-two"
    sibling.mkdir()
    assert check(sibling, home).path == str(sibling)


def test_somebody_elses_home_is_recognised(home: Path) -> None:
    other = home.parent / "other"
    (other / ".gnupg").mkdir(parents=True)
    with pytest.raises(BadProjectError, match="seems to be a home directory"):
        check(other, home)


def test_our_own_directories_are_none(home: Path) -> None:
    (home / "code/app/run").mkdir()
    private = [str(home / "code/app/run")]
    for path in ("code/app", "code/app/run"):
        with pytest.raises(BadProjectError, match="may hold secrets"):
            check_project(str(home / path), "/project", str(home), private=private)


@pytest.mark.skipif(os.geteuid() == 0, reason="not here: root reads everything")
def test_a_directory_that_cannot_be_read_is_none(home: Path) -> None:
    (home / "code/app").chmod(0o300)
    with pytest.raises(BadProjectError, match="not readable") as error:
        check(home / "code/app", home)
    assert "chmod u+rx" in error.value.hint


@pytest.mark.parametrize("mount_point", ["/project", "/srv/work", "/home/user/code", "/mnt"])
def test_mount_points_outside_of_the_system_are_allowed(mount_point: str) -> None:
    check_mount_point(mount_point)


@pytest.mark.parametrize(
    "mount_point",
    [
        *("", "project", "//project", "/a/../b", "/a/", "/./a", "/a//b", "/a\nb", "/a\0"),
        *("/", "/usr", "/usr/share/x", "/proc/1", "/dev/shm", "/etc/x", "/tmp", "/tmp/project"),
        *("/workspace", "/workspace/project", "/run/nsm", "/lib64/x", "/bin", "/sys"),
    ],
)
def test_places_that_are_no_mount_points(mount_point: str, home: Path) -> None:
    with pytest.raises(BadProjectError) as error:
        check(home / "code/app", home, mount_point)
    assert "/project" in error.value.hint


def choose(
    home: Path,
    *,
    root: str | None = None,
    configured: str | None = None,
    cwd: str | None = None,
    **variables: str,
) -> tuple[str | None, str]:
    mount, reason = choose_project(
        variables=variables,
        root=root,
        configured=configured,
        cwd=cwd,
        mount_point="/project",
        home=str(home),
    )
    return mount.path if mount else None, reason


def test_the_order_of_candidates(home: Path) -> None:
    places: dict[str, str] = {}
    for name in ("one", "two", "three", "four", "five"):
        (home / name).mkdir()
        places[name] = str(home / name)
    one, two, three, four, five = places.values()
    everything = {"root": two, "configured": four, "cwd": five}
    everything |= {"PROJECT_DIR": one, "CLAUDE_PROJECT_DIR": three}
    for key, expected in (
        ("PROJECT_DIR", one),
        ("root", two),
        ("CLAUDE_PROJECT_DIR", three),
        ("configured", four),
        ("cwd", five),
    ):
        assert choose(home, **everything) == (expected, "")
        everything[key] = ""
    assert choose(home, **everything) == (None, "no project directory was named")


def test_a_project_named_for_nsm_must_be_usable(home: Path) -> None:
    good = str(home / "code/app")
    with pytest.raises(BadProjectError, match=r"PROJECT_DIR: .*does not exist"):
        choose(home, PROJECT_DIR=str(home / "missing"), root=good)
    with pytest.raises(BadProjectError, match=r"\[project\] path: .*home directory"):
        choose(home, configured="~", cwd=good)


@pytest.mark.parametrize("source", ["root", "CLAUDE_PROJECT_DIR", "cwd"])
def test_an_unusable_directory_of_the_client_means_no_project(source: str, home: Path) -> None:
    path, reason = choose(home, **{source: str(home)})
    assert path is None
    assert "is your home directory" in reason


def test_an_unusable_candidate_does_not_let_another_slip_in(home: Path) -> None:
    path, reason = choose(home, root=str(home), cwd=str(home / "code/app"))
    assert path is None
    assert reason.startswith("the client's root: ")


def test_a_bad_mount_point_is_an_error_even_without_a_project(home: Path) -> None:
    with pytest.raises(BadProjectError, match="/usr"):
        choose_project(
            variables={}, root=None, configured=None, cwd=None, mount_point="/usr", home=str(home)
        )


def test_a_directory_closed_to_the_jails_user_is_no_project(tmp_path: Path) -> None:
    """Under root, jails are another user's: said before a session is started for it."""

    def closed(path: str) -> str | None:
        return f"{path} is closed to user 7"

    def choose(variables: dict[str, str], cwd: str | None) -> tuple[ProjectMount | None, str]:
        return choose_project(
            variables=variables,
            root=None,
            configured=None,
            cwd=cwd,
            mount_point="/project",
            home="/home/user",
            unreadable=closed,
        )

    mount, reason = choose({}, str(tmp_path))
    assert mount is None
    assert "is closed to user 7, the user that jails run as" in reason
    with pytest.raises(BadProjectError, match=r"PROJECT_DIR: .* is closed to user 7"):
        choose({"PROJECT_DIR": str(tmp_path)}, None)


@pytest.mark.parametrize("step", ["the directory", "what leads there"])
def test_a_project_exchanged_during_its_check_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Else the secret's identity would be noted down under the project's name."""
    (home / ".ssh/app").mkdir()
    (home / "way").symlink_to(home / "code/app")  # a path without links is not resolved
    moved, target = {
        "the directory": (home / "code/app", home / ".ssh"),
        "what leads there": (home / "code", home / ".ssh"),
    }[step]
    resolve = os.path.realpath

    def resolve_and_lose(path: str, **options: Any) -> str:
        real = resolve(path, **options)
        if real == str(home / "code/app"):
            moved.rename(moved.with_name("old"))
            moved.symlink_to(target)
        return real

    monkeypatch.setattr(os.path, "realpath", resolve_and_lose)
    with pytest.raises(BadProjectError, match=r"moved while it was looked at|is not a directory"):
        check(home / "way", home)


def test_the_project_of_a_live_session_is_not_checked_again(home: Path) -> None:
    projects = Projects(
        ProjectSettings(), home=str(home), private=(), unreadable=lambda path: f"{path} is closed"
    )
    shown = check(home / "code/app", home, ProjectSettings().mount_point)
    assert projects.check(shown.path, shown=shown) is shown
    for path, point in ((shown.path, "/other"), (str(home / "code"), None)):
        with pytest.raises(BadProjectError, match="is closed"):
            projects.check(path, point, shown=shown)
    (home / "code/app").rename(home / "code/old")
    (home / "code/app").mkdir()
    with pytest.raises(BadProjectError, match="is closed"):
        projects.check(shown.path, shown=shown)


def test_a_project_whose_disk_hangs_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "WAIT_S", 0.01)
    mended = threading.Event()

    def why_unreadable(path: str) -> None:
        mended.wait()

    projects = Projects(ProjectSettings(), home=str(home), private=(), unreadable=why_unreadable)
    path = str(home / "code/app")
    with pytest.raises(BadProjectError, match="cannot be read: its disk does not answer"):
        projects.check(path)
    with pytest.raises(BadProjectError, match="cannot be read: its disk does not answer"):
        projects.choose(variables={"PROJECT_DIR": path}, root=None, cwd=None)
    mended.set()


def test_a_linked_worktree_has_the_directory_that_it_shares(home: Path) -> None:
    app, linked = home / "code/app", home / "code/linked"
    subprocess.run(["git", "init", "-q", str(app)], check=True)
    me = ["-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run(
        ["git", "-C", str(app), *me, "commit", "-q", "--allow-empty", "-m", "x"], check=True
    )
    subprocess.run(["git", "-C", str(app), "worktree", "add", "-q", str(linked)], check=True)
    mount = check(linked, home)
    assert mount.git is not None
    assert (mount.git.path, mount.git.mount_point) == (f"{app}/.git", f"{app}/.git")
    assert check(app, home).git is None
    # By a relative path, as seen from where the project is shown.
    (linked / ".git").write_text("gitdir: ../app/.git/worktrees/linked\n")
    relative = check(linked, home, "/srv/project").git
    assert relative is not None
    assert relative.mount_point == "/srv/app/.git"
    # Nothing of the jail's own is covered, and nothing private is shown.
    assert check(linked, home, "/srv/app").git is None
    assert check_project(str(linked), "/project", str(home), private=(f"{app}",)).git is None
    closed = check_project(
        str(linked), "/project", str(home), unreadable=lambda p: "no" if "/app" in p else None
    )
    assert closed.git is None
