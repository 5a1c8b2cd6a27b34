"""Read-only paths of a working directory, found in repositories made by the real git."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from box.repositories import GIT, git, look, repository, variables
from nsmbox.model.plan import BoxError
from nsmbox.protection import git_repository, guarded_files, guarded_git, search
from nsmbox.protection.git_repository import GitFacts

if TYPE_CHECKING:
    from pathlib import Path

    from nsmbox.protection.guarded_files import Guarded

HOOKS = ".git/hooks"
OF_GIT = [".git/commondir", ".git/config", ".git/hooks"]


def guard(directory: Path, *paths: str) -> Guarded:
    """Find the protected paths of a working directory."""
    home = directory.parent / "home"
    return guarded_files.look(
        str(directory), look(directory, home), paths=paths, git=GIT, variables=variables(home)
    )


def below(directory: Path, paths: tuple[str, ...]) -> list[str]:
    return [os.path.relpath(path, directory) for path in paths]


def paths_of(found: Guarded) -> tuple[str, ...]:
    return tuple(each.path for each in found.stand_ins)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "project")


def test_hooks_and_configuration_of_git_and_what_leads_elsewhere(project: Path) -> None:
    found = guard(project)
    assert below(project, found.read_only) == OF_GIT
    assert below(project, found.held) == [".git"]
    own = [mount for mount in guarded_files.mounts(found) if not mount.stand_in]
    assert [(m.kind, m.target) for m in own] == [
        ("bind", f"{project}/.git"),
        ("ro-bind", f"{project}/.git/commondir"),
        ("ro-bind", f"{project}/.git/config"),
        ("ro-bind", f"{project}/.git/hooks"),
    ]
    assert all(m.linkless and m.source == m.target for m in own)
    assert found.notes == ()


def test_pipes_in_many_configurations_are_waited_for_once(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    def run(*_: object, wait_s: float | None = None) -> str:
        waits.append(wait_s)
        return f"{git_repository.TOOK_TOO_LONG}{wait_s} s"

    for name in ("a", "b", "c"):
        config = repository(project / name) / ".git/config"
        config.write_text("[include]\n\tpath = pipe\n")
    monkeypatch.setattr(git_repository, "run", run)
    found = guarded_files.look(str(project), GitFacts(), git=GIT, variables={})
    assert waits == [git_repository.WAIT_S, guarded_git.SHORT_WAIT_S, guarded_git.SHORT_WAIT_S]
    assert len(found.notes) == 3


def test_further_paths_and_the_way_to_them(project: Path) -> None:
    """A directory with a mount in it could be renamed, and another be made in its place."""
    (project / "scripts" / "ci").mkdir(parents=True)
    (project / "scripts" / "ci" / "deploy").write_text("")
    found = guard(project, "scripts/ci/deploy", "./.mcp.json", "absent/one")
    assert below(project, found.read_only) == [*OF_GIT, "scripts/ci/deploy"]
    assert below(project, found.held) == [".git", "scripts", "scripts/ci"]
    assert found.notes == ()
    assert {".mcp.json", "absent"} <= {*below(project, paths_of(found))}


@pytest.mark.parametrize("path", ["/etc/passwd", "..", "../x", "a/../../x", ".", "", "a\0b"])
def test_paths_outside_are_refused(project: Path, path: str) -> None:
    with pytest.raises(BoxError, match="not below the working directory") as caught:
        guard(project, path)
    assert caught.value.exit_code == 2


def test_links_and_their_targets_are_protected(project: Path) -> None:
    (project / ".vscode").symlink_to("/etc")
    (project / "tools").symlink_to(".")
    (project / "deploy").write_text("")
    (project / "conf").mkdir()
    (project / "conf" / "m.json").symlink_to("../deploy")
    (project / ".mcp.json").symlink_to(project / "tools" / "conf" / "m.json")
    (project / ".idea").symlink_to(".idea")
    found = guard(project, "tools/deploy")
    assert below(project, found.read_only) == [*OF_GIT, "deploy"]
    assert below(project, found.held) == [".git", "conf"]
    assert below(project, tuple(path for path, _ in found.links)) == [
        ".idea",
        ".mcp.json",
        ".vscode",
        "conf/m.json",
        "tools",
    ]
    assert dict(found.links)[f"{project}/conf/m.json"] == "../deploy"
    assert (found.notes, found.unprotectable) == ((), ())


def test_links_in_protected_directories(project: Path) -> None:
    for name in (".claude", "agents/skills", "src"):
        (project / name).mkdir(parents=True)
    (project / ".claude" / "skills").symlink_to("../agents/skills")
    (project / "agents" / "skills" / "run.sh").symlink_to("../../run.sh")
    (project / "run.sh").touch()
    (project / "AGENTS.md").touch()
    (project / ".claude" / "CLAUDE.md").symlink_to("../AGENTS.md")
    (project / ".claude" / "settings.json").symlink_to("../ai/settings.json")
    (project / ".claude" / "worktrees").mkdir()  # of projects of their own
    (project / ".claude" / "worktrees" / "link").symlink_to("../../src")
    found = guard(project)
    assert below(project, found.read_only) == [".claude", *OF_GIT, "agents/skills", "run.sh"]
    assert found.links == ()  # nobody changes directories that are read-only
    assert "ai" in below(project, paths_of(found))


def test_links_without_end_are_followed_up_to_a_number(project: Path) -> None:
    """Anybody who worked in the project may have made them, and each costs a mount."""
    for number in range(search.MAX_READ_ONLY + 9):
        name = f"d{number}" if number else ".claude"
        (project / name).mkdir()
        (project / name / "next").symlink_to(f"../d{number + 1}")
    found = guard(project)
    assert len(found.read_only) == search.MAX_READ_ONLY + 1
    assert [note.partition(" ")[2][:14] for note in found.unprotectable] == ["has many files"]


def test_links_to_what_a_box_changes_at_another_place_are_said(project: Path) -> None:
    (project / ".amp").symlink_to("../state/amp")
    found = guarded_files.look(str(project), GitFacts(), kept=[f"{project.parent}/state"])
    assert ".amp leads to" in found.unprotectable[-1]


def test_targets_of_links_in_other_directories_are_protected(project: Path) -> None:
    other = project.parent / "other"
    other.mkdir()
    (other / "m.json").touch()
    (project / ".mcp.json").symlink_to("../other/m.json")
    found = guarded_files.look(str(project), GitFacts(), others=[str(other)])
    assert below(project, found.read_only) == ["../other/m.json"]


def test_files_that_cannot_be_protected_are_told(project: Path) -> None:
    (project / "a").touch()
    os.link(project / "a", project / ".envrc")
    (project / ".vscode").symlink_to("../project/.")
    os.mkfifo(project / ".mcp.json")
    assert [note.partition(" (")[0] for note in guard(project).unprotectable] == [
        ".mcp.json is neither a file nor a directory and is not protected.",
        ".vscode leads to a whole directory of the box",
        ".envrc has another name",
    ]


def test_files_that_the_host_starts_in_a_part_of_home_are_protected(tmp_path: Path) -> None:
    for name in (".config/fish", ".config/systemd/user", ".config/app", ".local/bin"):
        (tmp_path / name).mkdir(parents=True)
    config = tmp_path / ".config"

    def found(directory: Path) -> Guarded:
        return guarded_files.look(str(directory), GitFacts(), homes=[str(tmp_path)])

    assert below(config, found(config).read_only) == ["fish", "systemd"]
    assert found(config / "app").read_only == ()
    assert {"Code", "zed"} <= {*below(config, paths_of(found(config)))}
    (note,) = found(config / "systemd" / "user").notes
    assert note.startswith("This directory is a part of ~/.config/systemd")
    assert below(tmp_path, found(tmp_path / ".local").read_only) == [".local/bin"]


def test_places_of_programs_are_said(project: Path) -> None:
    (project / "bin").mkdir()
    path = f"/usr/bin:{project}/bin:{project}/absent/bin"
    found = guarded_files.look(str(project), GitFacts(), variables={"PATH": path})
    assert [note[:39] for note in found.notes] == ["PATH has places here (bin, absent/bin):"]


def test_parts_of_git_that_are_links(project: Path) -> None:
    os.rename(project / HOOKS, project / "aside")
    (project / HOOKS).symlink_to("/etc")
    os.rename(project / ".git" / "config", project / "gitconfig")
    (project / ".git" / "config").symlink_to("../gitconfig")
    git(project, "config", "core.hooksPath", "ci/hooks")
    (project / ".modules").mkdir()
    os.rename(repository(project / "lib") / ".git", project / ".modules" / "lib")
    (project / ".git" / "modules").symlink_to("../.modules")
    found = guard(project)
    assert below(project, found.read_only) == [
        ".git/commondir",
        ".modules/lib/config",
        ".modules/lib/hooks",
        "gitconfig",
    ]
    assert below(project, tuple(path for path, _ in found.links)) == [
        ".git/config",
        HOOKS,
        ".git/modules",
    ]
    assert "ci" in below(project, paths_of(found))


def test_a_repository_that_a_link_names(project: Path) -> None:
    (project / "store").mkdir()
    os.rename(project / ".git", project / "store" / "git")
    (project / ".git").symlink_to("store/git")
    found = guard(project)
    assert below(project, found.read_only) == [f"store/{path[1:]}" for path in OF_GIT]
    assert found.links == ((f"{project}/.git", "store/git"),)
    (project / "sub").mkdir()
    (project / "sub" / ".git").symlink_to("../store/git")
    os.unlink(project / ".git")
    assert "store/git/config" in below(project, guard(project).read_only)


READ_ONLY: dict[str, tuple[list[str], list[str], list[str]]] = {
    "what editors and agents run": (
        [
            *(".mcp.json", ".bashrc", "my.code-workspace", "other.json"),
            ".vscode/",
            ".claude/",
            "src/",
        ],
        [],
        [".bashrc", ".claude", ".mcp.json", ".vscode", "my.code-workspace"],
    ),
    "what commits and shells run": (
        [".pre-commit-config.yaml", "lefthook.yml", ".direnv/", ".husky/"],
        [],
        [".direnv", ".husky", ".pre-commit-config.yaml", "lefthook.yml"],
    ),
    "hooks elsewhere": (["ci/hooks/"], ["core.hooksPath=ci/hooks"], ["ci/hooks"]),
    "hooks of all projects": ([".githooks/"], ["--global core.hooksPath=.githooks"], [".githooks"]),
    "hooks for everything": (["src/"], ["core.hooksPath=."], []),
    "hooks that are links": (
        [
            "scripts/check",
            ".git/hooks/pre-commit -> ../../scripts/check",
            ".git/hooks/post-merge -> /usr/bin/true",
        ],
        [],
        ["scripts/check"],
    ),
}
"""By what is protected: files, directories and links; git's configuration; what is read-only
besides what always is."""


@pytest.mark.parametrize("name", READ_ONLY)
def test_files_that_the_host_runs_are_read_only(project: Path, name: str) -> None:
    files, settings, expected = READ_ONLY[name]
    for file in files:
        at, _, target = file.partition(" -> ")
        path = project / at
        (path if at.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target)
        elif not at.endswith("/"):
            path.touch()
    (project.parent / "home").mkdir()
    for setting in settings:
        git(project, "config", *setting.replace("=", " ").split())
    found = guard(project)
    assert sorted(below(project, found.read_only)) == sorted([*OF_GIT, *expected])
    above = {os.path.dirname(path) for path in expected} - {""}
    assert below(project, found.held) == [".git", *above]


def test_configuration_that_is_included(project: Path) -> None:
    (project / "team.gitconfig").write_text("[include]\npath = more/aliases\n[core]\neditor=x\n")
    (project / "more").mkdir()
    (project / "more" / "aliases").write_text("[alias]\nx = y\n")
    git(project, "config", "include.path", "../team.gitconfig")
    assert below(project, guard(project).read_only) == [*OF_GIT, "more/aliases", "team.gitconfig"]


def test_configuration_that_cannot_be_read_is_said(project: Path) -> None:
    with (project / ".git" / "config").open("a") as file:
        file.write("[include\n")
    assert "bad config line" in guard(project).notes[-1]


def test_configuration_of_worktrees_and_where_they_are(project: Path) -> None:
    git(project, "worktree", "add", "-q", "../linked")
    linked = project.parent / "linked"
    own = ".git/worktrees/linked"
    expected = [*OF_GIT, f"{own}/commondir", f"{own}/gitdir"]
    assert below(project, guard(project).read_only) == expected
    found = guard(linked)
    assert sorted(below(project, found.read_only)) == ["../linked/.git", *expected]
    assert below(project, found.held) == [".git/worktrees", own]


def test_submodules(tmp_path: Path, project: Path) -> None:
    repository(tmp_path / "library")
    git(project, "submodule", "add", "-q", "../library", "lib/one")
    module = ".git/modules/lib/one"
    found = guard(project)
    assert below(project, found.read_only) == [*OF_GIT, f"{module}/config", f"{module}/hooks"]
    assert below(project, found.held) == [".git", ".git/modules", ".git/modules/lib", module]


def test_a_directory_full_of_projects(tmp_path: Path) -> None:
    work = tmp_path / "work"
    repository(work / "one")
    repository(work / "group" / "two")
    git(work, "clone", "-q", "--bare", "one", "three.git", home=tmp_path / "home")
    repository(work / "node_modules" / "none")
    found = guard(work)
    assert below(work, found.read_only) == [
        "group/two/.git/config",
        "group/two/.git/hooks",
        "one/.git/config",
        "one/.git/hooks",
        "three.git/config",
        "three.git/hooks",
    ]
    assert below(work, found.held) == [
        "group",
        "group/two",
        "group/two/.git",
        "one",
        "one/.git",
        "three.git",
    ]
    assert found.made == ()  # in others' repositories nothing is left that git has not made


def test_there_can_be_too_many_repositories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_git, "MAX_REPOSITORIES", 1)
    for name in ("one", "two"):
        repository(tmp_path / "work" / name)
    found = guard(tmp_path / "work")
    assert below(tmp_path / "work", found.read_only) == ["one/.git/config", "one/.git/hooks"]
    assert "more than 1 repositories" in found.notes[0]


def test_large_directories_are_not_searched_to_their_end(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for number in range(search.MAX_ENTRIES // 2 + 1):
        (work / str(number)).touch()
    found = guarded_files.look(str(work), GitFacts())
    assert [note[:23] for note in found.notes] == ["This directory is large"]


# --------------------------------------------------------------------- what is not to be made


def test_there_are_stand_ins_for_what_is_not_there(project: Path) -> None:
    (project / ".vscode").mkdir()
    found = guard(project)
    kinds = {os.path.relpath(each.path, project): each.kind for each in found.stand_ins}
    assert kinds[".claude"] == kinds[".envrc"] == "directory"
    assert kinds[".mcp.json"] == "socket"
    assert {".vscode", ".bashrc", ".npmrc", "AGENTS.md", "lefthook.yml"}.isdisjoint(kinds)
    assert {
        (mount.kind, mount.target, mount.made, mount.linkless)
        for mount in guarded_files.mounts(found)
        if mount.target.endswith((".claude", ".mcp.json"))
    } == {
        ("ro-bind", f"{project}/.claude", True, True),
        ("ro-file", f"{project}/.mcp.json", True, True),
    }


def test_files_read_beside_a_configuration_cannot_be_made(project: Path) -> None:
    (project / "lefthook.yml").write_text("")
    kinds = {os.path.basename(each.path): each.kind for each in guard(project).stand_ins}
    assert kinds["lefthook-local.yml"] == "file"
    assert kinds[".lefthook"] == "directory"
    assert "lefthook.yml" not in kinds


def test_allowed_files_are_not_protected_and_can_be_made(project: Path) -> None:
    (project / ".idea").mkdir()
    home = project.parent / "home"
    found = guarded_files.look(
        str(project),
        look(project, home),
        unprotected=[".claude", ".idea", ".git/config", ".git/hooks"],
        git=GIT,
        variables=variables(home),
    )
    assert below(project, found.read_only) == [".git/commondir"]
    names = below(project, paths_of(found))
    assert ".claude" not in names
    assert ".codex" in names


@pytest.mark.parametrize("standing", [False, True])
def test_in_an_empty_directory_there_are_no_stand_ins(project: Path, *, standing: bool) -> None:
    """`git clone` and makers of new projects refuse to work beside them."""
    others: set[str] = set()
    if standing:
        (project / ".vscode").mkdir()
        others.add(f"{project}/.vscode")
    found = guarded_files.look(
        str(project), look(project, project.parent / "home"), paths=["scripts"], standing=others
    )
    assert below(project, paths_of(found)) == ["scripts"]
    assert below(project, found.read_only) == OF_GIT
    assert [note[:27] for note in found.unprotectable] == ["This directory is empty, so"]
    (project / "README.md").touch()
    assert f"{project}/.claude" in paths_of(guard(project))
    worktrees = project.parent / "project.worktrees"
    worktrees.mkdir()
    assert guarded_files.look(str(worktrees), GitFacts()).unprotectable == ()


def test_a_name_without_a_dot_is_taken_only_for_a_program_that_is_there(project: Path) -> None:
    """`*.json` finds what is made there."""
    (project / "README.md").touch()
    programs = project.parent / "bin"
    programs.mkdir()
    (programs / "mise").touch(mode=0o755)
    found = guarded_files.look(str(project), GitFacts(), variables={"PATH": str(programs)})
    visible = {os.path.basename(path) for path in paths_of(found) if "/." not in path}
    assert visible == {"mise.toml", "mise.local.toml"}


def test_stand_ins_of_other_boxes_are_none_of_the_projects_files(project: Path) -> None:
    (project / "README.md").touch()
    (project / ".vscode").mkdir()
    found = guarded_files.look(str(project), GitFacts(), standing={f"{project}/.vscode"})
    assert f"{project}/.vscode" in paths_of(found)
    assert f"{project}/.vscode" not in found.read_only


@pytest.mark.skipif(os.geteuid() == 0, reason="not here: root can write anywhere")
def test_a_read_only_directory_needs_no_stand_ins(project: Path) -> None:
    project.chmod(0o555)
    assert guard(project).stand_ins == ()


def test_files_that_git_would_read_cannot_be_made(project: Path) -> None:
    git(project, "config", "core.hooksPath", "ci/hooks")
    git(project, "config", "include.path", "../team.gitconfig")
    git(project, "config", "includeIf.onbranch:main.path", "own")
    kinds = {os.path.relpath(each.path, project): each.kind for each in guard(project).stand_ins}
    assert (kinds["ci"], kinds["team.gitconfig"], kinds[".git/own"]) == (
        *("directory", "file"),
        "file",
    )
    (project / "team.gitconfig").touch()
    assert git(project, "status", "--porcelain") == "?? team.gitconfig\n"


# ------------------------------------------------------------------------ what has to be made


def test_missing_files_of_git_are_made_and_git_works_with_them(project: Path) -> None:
    for name in (project / HOOKS).iterdir():
        name.unlink()
    (project / HOOKS).rmdir()
    found = guard(project)
    assert below(project, tuple(path for path, _ in found.made)) == [".git/commondir", HOOKS]
    assert not (project / HOOKS).exists()  # a look changes nothing
    guarded_files.make(found)
    guarded_files.make(found)
    assert (project / HOOKS).is_dir()
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "fsck") == ""
    assert git(project, "log", "--format=%s") == "one\n"
    git(project, "worktree", "add", "-q", "../linked")
    git(project, "gc", "-q")
    again = guard(project)
    assert (again.made, below(project, again.read_only)[:3]) == ((), OF_GIT)


def test_missing_files_are_not_made_through_links(project: Path) -> None:
    found = guard(project)
    (project / ".git").rename(project.parent / "aside")
    (project / ".git").symlink_to(project.parent / "aside")
    with pytest.raises(BoxError, match="cannot be made"):
        guarded_files.make(found)
    assert not (project.parent / "aside" / "commondir").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="not here: root can write anywhere")
def test_nothing_is_made_where_nobody_can_write(project: Path) -> None:
    (project / ".git").chmod(0o555)
    assert guard(project).made == ()


def test_a_repository_that_is_led_elsewhere_is_refused(project: Path) -> None:
    (project / ".git" / "commondir").write_text("../evil\n")
    with pytest.raises(BoxError, match="leads git to hooks and configuration elsewhere"):
        guard(project)


def test_git_takes_everything_from_where_commondir_says(project: Path) -> None:
    """A box therefore refuses such a file, and makes one where there is none."""
    (project / "evil" / "hooks").mkdir(parents=True)
    for name in ("objects", "refs"):
        (project / "evil" / name).symlink_to(f"../.git/{name}")
    (project / "evil" / "config").write_text("[alias]\nst = !echo evil\n")
    (project / ".git" / "commondir").write_text("../evil\n")
    assert git(project, "st") == "evil\n"
