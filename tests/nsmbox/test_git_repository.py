"""The repository of a working directory, who commits, and what git's settings start."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from box import world as places
from box.repositories import GIT, commit, git, look, repository, variables
from box.world import HOME, PROJECT, have_git
from nsm.git import MAX_POINTER_BYTES
from nsmbox.protection import git_repository
from nsmbox.protection.git_repository import EMAIL, NAME, Identity
from nsmbox.protection.secrets import Known

if TYPE_CHECKING:
    from pathlib import Path

    from box.world import World


def configured(home: Path, text: str) -> Path:
    home.mkdir(exist_ok=True)
    (home / ".gitconfig").write_text(text)
    return home


# ------------------------------------------------------------------------------------ identity


def test_the_author_is_the_one_that_the_user_told_git(tmp_path: Path) -> None:
    home = configured(
        tmp_path / "home", "[user]\nname = Ada\nemail = a@b.c\n[credential]\nhelper=x"
    )
    found = git_repository.identity(GIT, None, variables(home))
    assert found == Identity(name="Ada", email="a@b.c", known=True)


def test_programs_of_the_system_are_found_for_a_known_author(tmp_path: Path) -> None:
    home = configured(tmp_path / "home", "[user]\nname = Ada\nemail = a@b.c\n")
    (tmp_path / "system").write_text("[core]\neditor = tools/edit\nhooksPath = /hooks\n")
    system = {"GIT_CONFIG_NOSYSTEM": "0", "GIT_CONFIG_SYSTEM": str(tmp_path / "system")}
    found = git_repository.identity(GIT, None, {**variables(home), **system})
    assert (found.hooks, found.programs) == ("/hooks", (("core.editor", "tools/edit"),))


def test_the_author_can_depend_on_the_directory(tmp_path: Path) -> None:
    home = configured(
        tmp_path / "home",
        f'[user]\nname = Ada\nemail = a@home\n[includeIf "gitdir:{tmp_path}/work/"]\npath = work',
    )
    (home / "work").write_text("[user]\nemail = ada@work\n")
    repository(tmp_path / "work" / "one")
    repository(tmp_path / "play")
    assert look(tmp_path / "work" / "one", home).identity.email == "ada@work"
    assert look(tmp_path / "play", home).identity.email == "a@home"


def test_the_project_does_not_say_who_commits(tmp_path: Path) -> None:
    home = configured(tmp_path / "home", "[user]\nname = Ada\nemail = a@b.c\n")
    project = repository(tmp_path / "project")
    git(project, "config", "user.name", "Mallory")
    assert look(project).identity.name == "Ada"
    assert home.exists()


def test_without_configuration_placeholders_stand_in(tmp_path: Path) -> None:
    found = look(repository(tmp_path / "project"))
    assert (found.identity, len(found.notes)) == (Identity(), 1)
    assert found.notes[0].startswith("git knows no user.name or user.email")


def test_half_of_a_configuration(tmp_path: Path) -> None:
    home = configured(tmp_path / "home", "[user]\nname = Ada\n")
    found = git_repository.identity(GIT, None, variables(home))
    assert (found.name, found.email, found.known) == ("Ada", EMAIL, False)


def test_a_broken_configuration_is_said_and_does_not_stop_a_box(tmp_path: Path) -> None:
    configured(tmp_path / "home", "[user\nname\n")
    found = look(repository_of_another(tmp_path))
    assert found.identity.name == NAME
    assert found.git_directory is not None
    assert found.notes == (f"git's configuration cannot be read: {found.identity.problem}.",)
    assert "bad config line 1" in found.identity.problem


def repository_of_another(tmp_path: Path) -> Path:
    """Made while the configuration was still in order."""
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "-q", home=tmp_path / "elsewhere")
    return project


def test_a_broken_repository_does_not_hide_who_commits(tmp_path: Path) -> None:
    configured(tmp_path / "home", "[user]\nname = Ada\nemail = a@b.c\n")
    project = repository(tmp_path / "project")
    (project / ".git" / "config").write_text("[core\n")
    assert look(project).identity == Identity(name="Ada", email="a@b.c", known=True)


@pytest.mark.parametrize("name", ["config", "HEAD", "commondir"])
def test_a_pipe_in_the_repository_holds_nobody_up(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(tmp_path / "home", "[user]\nname = Ada\nemail = a@b.c\n")
    project = repository(tmp_path / "project")
    (project / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(project / ".git" / name)
    monkeypatch.setattr(git_repository, "WAIT_S", 60)  # the test would take as long
    assert look(project).identity.known


def test_a_pipe_that_is_included_is_waited_for_so_long_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = configured(tmp_path / "home", "[include]\npath = pipe\n")
    os.mkfifo(home / "pipe")
    monkeypatch.setattr(git_repository, "WAIT_S", 0.05)
    assert "took longer" in git_repository.identity(GIT, None, variables(home)).problem


def test_git_is_not_asked_where_there_is_none(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    found = git_repository.look(str(project), Known(), None, {})
    assert found.notes == ("git is not installed: commits in the box are of a made-up user.",)
    assert found.git_directory == f"{project}/.git"


@pytest.mark.parametrize(
    "name",
    [
        "Ada",
        'A "quoted" \\ name # not a comment ; nor this',
        " spaces around ",
        "line\nbreak\ttab\b",
        "Ünïcode \udcff",
        "[section]\nkey = value",
        "",
    ],
)
def test_gits_configuration_says_the_same_to_git(tmp_path: Path, name: str) -> None:
    file = tmp_path / "gitconfig"
    file.write_bytes(git_repository.configuration(Identity(name=name, email="a@b.c")))
    listed = subprocess.run(
        [GIT, "config", "--file", str(file), "-z", "--list"], capture_output=True, check=True
    ).stdout
    assert os.fsdecode(listed).split("\0") == [
        f"user.name\n{name}",
        "user.email\na@b.c",
        "safe.directory\n*",
        "",
    ]


# ----------------------------------------------------------------------------------- repository


def test_a_plain_repository_is_its_own(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    found = look(project)
    assert (found.git_directory, found.common, found.shown) == (
        f"{project}/.git",
        f"{project}/.git",
        (),
    )


def test_a_linked_worktree_has_its_repository_shown(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(main, "worktree", "add", "-q", "../linked")
    found = look(tmp_path / "linked")
    assert found.git_directory == f"{main}/.git/worktrees/linked"
    assert (found.common, found.shown) == (f"{main}/.git", (f"{main}/.git",))
    (mount,) = git_repository.mounts(found)
    assert (mount.kind, mount.target, mount.source) == ("bind", mount.source, f"{main}/.git")
    assert mount.linkless


def test_a_worktree_of_a_bare_repository_below_is_shown_anyway(tmp_path: Path) -> None:
    """A common layout: `project/.bare`, `project/.git` that names it, and worktrees beside."""
    project = tmp_path / "project"
    repository(project / "first")
    git(project, "clone", "-q", "--bare", "first", ".bare", home=tmp_path / "home")
    (project / ".git").write_text("gitdir: ./.bare\n")
    found = look(project)
    assert (found.git_directory, found.shown) == (f"{project}/.bare", ())


def test_a_submodule_has_its_repository_shown(tmp_path: Path) -> None:
    repository(tmp_path / "library")
    main = repository(tmp_path / "main")
    git(main, "submodule", "add", "-q", "../library", "lib/one")
    found = look(main / "lib" / "one", tmp_path / "home")
    assert found.shown == (f"{main}/.git/modules/lib/one",)


def test_a_bare_repository_is_its_own(tmp_path: Path) -> None:
    repository(tmp_path / "project")
    git(tmp_path, "clone", "-q", "--bare", "project", "bare.git", home=tmp_path / "home")
    assert look(tmp_path / "bare.git").git_directory == f"{tmp_path}/bare.git"


def test_part_of_a_repository_is_said_to_be_one(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    (project / "docs" / "en").mkdir(parents=True)
    found = look(project / "docs" / "en", tmp_path / "home")
    assert found.git_directory is None
    assert found.notes[0].startswith(f"This directory is part of the repository {project}")


# ------------------------------------------------- `.git` files that a box has written


def believed(project: Path) -> bool:
    found = look(project)
    assert found.git_directory is not None or found.shown == ()
    return bool(found.shown)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A working directory without a repository, beside one that it must not see."""
    repository(tmp_path / "other")
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.mark.parametrize(
    "named",
    ["../home/.ssh", "../home", "..", "/", "../other/.git", "../other", ".", "", "../none", "\0"],
)
def test_a_git_file_that_names_something_else_is_not_followed(project: Path, named: str) -> None:
    (project / ".git").write_text(f"gitdir: {named}\n")
    assert not believed(project)


def test_a_link_to_a_repository_is_not_followed(project: Path) -> None:
    (project / ".git").symlink_to("../other/.git")
    found = look(project)
    assert (found.git_directory, found.shown) == (None, ())
    assert ".git is a symbolic link" in found.notes[0]


def test_a_git_file_that_is_a_pipe_or_huge_is_not_read(project: Path) -> None:
    os.mkfifo(project / ".git")
    assert not believed(project)
    (project / ".git").unlink()
    (project / ".git").write_bytes(b"gitdir: ../other/.git" + b"\n" * MAX_POINTER_BYTES)
    assert not believed(project)


def test_the_worktree_of_another_directory_is_not_shown(project: Path) -> None:
    other = project.parent / "other"
    git(other, "worktree", "add", "-q", "../linked")
    (project / ".git").write_text((project.parent / "linked" / ".git").read_text())
    found = look(project)
    assert found.shown == ()
    assert "it is that of another working directory" in found.notes[0]


def forged(project: Path, common: str) -> None:
    """A worktree's directory inside of the project, that says all that git asks for."""
    own = project / "forged" / "worktrees" / "x"
    (own / "objects").mkdir(parents=True)
    (own / "refs").mkdir()
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "commondir").write_text(f"{common}\n")
    (own / "gitdir").write_text(f"{project}/.git\n")
    (project / ".git").write_text(f"gitdir: {own}\n")


@pytest.mark.parametrize("common", ["../../../../other/.git", "../../../../home", "/"])
def test_a_forged_worktree_does_not_lead_out_of_the_project(project: Path, common: str) -> None:
    forged(project, common)
    assert not believed(project)


def test_a_repository_in_a_secret_place_is_not_shown(project: Path) -> None:
    """However well it says that it belongs to the working directory."""
    keys = repository(project.parent / "home" / ".password-store")
    git(keys, "worktree", "add", "-q", str(project.parent / "linked"), home=keys.parent)
    found = look(project.parent / "linked")
    assert found.shown == ()
    assert "which no box shows" in found.notes[0]


def test_a_home_that_is_a_repository_is_not_shown_as_a_whole(project: Path) -> None:
    """`core.worktree` of a bare HOME: people do so for their dotfiles."""
    home = project.parent / "home"
    git(home, "init", "-q", "--bare", ".", home=home)
    git(home, "config", "core.bare", "false", home=home)
    git(home, "config", "core.worktree", str(project), home=home)
    (project / ".git").write_text("gitdir: ../home\n")
    found = look(project)
    assert found.shown == ()
    assert "is your home directory" in found.notes[0]


def test_the_repository_of_somebody_else_is_not_shown(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = repository(project.parent / "main")
    git(main, "worktree", "add", "-q", "../linked")
    monkeypatch.setattr(os, "geteuid", lambda: main.stat().st_uid + 1)
    found = look(project.parent / "linked")
    assert found.shown == ()
    assert "belongs to somebody else" in found.notes[0]


def test_a_worktree_that_was_moved_is_found_again_after_git_repaired_it(project: Path) -> None:
    main = repository(project.parent / "main")
    git(main, "worktree", "add", "-q", "../linked")
    (project.parent / "linked").rename(project.parent / "moved")
    assert not believed(project.parent / "moved")
    git(project.parent / "moved", "worktree", "repair")
    assert believed(project.parent / "moved")
    commit(project.parent / "moved")


NAMED = (
    "alias.x core.askpass core.editor core.fsmonitor core.gitproxy core.pager core.sshcommand "
    "credential.helper credential.https://a.org.helper diff.external diff.x.command "
    "diff.x.textconv difftool.x.cmd difftool.x.path filter.a.b.clean filter.x.process "
    "filter.x.smudge gc.recentobjectshook gpg.program gpg.ssh.defaultkeycommand gpg.ssh.program "
    "hook.x.command imap.tunnel init.templatedir instaweb.httpd interactive.difffilter "
    "lfs.customtransfer.x.path lfs.extension.x.clean man.x.cmd merge.x.driver mergetool.x.cmd "
    "pager.log remote.x.receivepack remote.x.uploadpack sendemail.tocmd sendemail.smtpserver "
    "sequence.editor submodule.x.update svn.authorsprog tar.x.command trailer.x.cmd "
    "trailer.x.command uploadpack.packobjectshook"
).split()


def test_entries_that_name_programs_are_known_and_looked_for() -> None:
    for key in NAMED:
        assert git_repository.names_program(key, "!tools/x"), key
        assert git_repository.runs(key, "!tools/x"), key
        assert any(word in key.encode() for word in git_repository.WORDS), key


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("tools/clean.sh %f", ["tools/clean.sh"]),
        ("./tools/clean.sh", ["tools/clean.sh"]),
        ("sh tools/clean.sh", ["tools/clean.sh"]),
        ("python3 clean.py --config=tools/clean.sh", ["clean.py", "tools/clean.sh"]),
        ("!f() { 'tools/a b' \"$@\"; }; f", ["tools/a b"]),
        ("!cat x|tools/clean.sh>out", ["tools/clean.sh"]),
        ("sh -c 'exec tools/clean.sh \"$1\"' -", ["tools/clean.sh"]),
        ("sh -c \"sh -c 'tools/clean.sh'\"", ["tools/clean.sh"]),
        ("$(git rev-parse --show-toplevel)/tools/clean.sh", ["tools/clean.sh"]),
        ("`git rev-parse --show-toplevel`/tools/clean.sh", ["tools/clean.sh"]),
        ("$PWD/tools/clean.sh", ["tools/clean.sh"]),
        ('"${PWD}"/tools/clean.sh', ["tools/clean.sh"]),
        ("HERE/clean.py", ["clean.py"]),
        ("make -C tools", ["tools"]),
        ("tools/missing.sh", ["tools/missing.sh"]),
        ("'tools/clean.sh", ["tools/clean.sh"]),
        *(
            (value, [])
            for value in ("cat", "clean.py", "sed s/a/b/", "/usr/bin/gpg", "../x", ".", "code -w")
        ),
    ],
)
def test_paths_of_a_command(tmp_path: Path, value: str, found: list[str]) -> None:
    for name in ("tools/clean.sh", "tools/a b", "clean.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    got = git_repository.paths_in(value.replace("HERE", str(tmp_path)), str(tmp_path))
    assert sorted(got) == [f"{tmp_path}/{name}" for name in found]


CHANGES = "echo x >>tools/clean.sh; echo x >tools/diff.sh; echo x >>tools/merge; echo done"


def configured_world(world: World) -> None:
    """A project with programs that both configurations of its user name."""
    have_git(world)
    for name in ("clean.sh", "merge", "other.sh"):
        world.write(f"{PROJECT}/tools/{name}", "cat\n", 0o755)
    places.git(world, "config", "filter.x.clean", "tools/clean.sh %f")
    places.git(world, "config", "--global", "diff.x.textconv", "tools/diff.sh")
    places.git(world, "config", "--global", "alias.m", "!sh tools/merge")
    places.git(world, "config", "--global", "alias.n", "tools/other.sh")


def test_programs_that_a_box_can_change_are_told_before_and_after(world: World) -> None:
    configured_world(world)
    done = world.box("sh", "-c", CHANGES)
    assert done.stdout == "done\n"
    told = [line.strip() for line in done.stderr.splitlines()]
    names = (
        "tools/clean.sh (filter.x.clean), tools/diff.sh (diff.x.textconv), tools/merge (alias.m)"
    )
    assert f"nsm box: git on this computer runs {names}, as its configuration" in done.stderr
    for name, key in (
        ("tools/clean.sh (changed)", "filter.x.clean"),
        ("tools/diff.sh (added)", "diff.x.textconv"),
        ("tools/merge (changed)", "alias.m"),
    ):
        assert f"{name}: git runs this program ({key})" in told
    assert "other.sh" not in done.stderr


@pytest.mark.slow
def test_programs_that_are_protected_cannot_be_changed_and_are_not_told(world: World) -> None:
    configured_world(world)
    paths = '["tools/clean.sh", "tools/diff.sh", "tools/merge"]'
    world.write(f"{HOME}/.config/nsm/config.toml", f"[box]\nprotect_paths = {paths}\n")
    done = world.box("sh", "-c", CHANGES)
    assert done.stdout == "done\n"
    assert "git on this computer runs" not in done.stderr
    assert "git runs this program" not in done.stderr
    assert not (world.host(PROJECT) / "tools/diff.sh").is_file()
    assert (world.host(PROJECT) / "tools/clean.sh").read_text() == "cat\n"
