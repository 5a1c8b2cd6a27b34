"""Files that a box left and the host would run, in repositories made by the real git."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from box.repositories import GIT, commit, git, look, repository, variables
from nsmbox.protection import guarded_files, leftovers
from nsmbox.protection.git_repository import MAX_CONFIG_BYTES, GitReader
from realjail import needs_bwrap

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.jail, needs_bwrap]

WHO = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


def before(project: Path) -> leftovers.Before:
    return leftovers.before(str(project), [str(project)])


def told(was: leftovers.Before) -> str:
    return leftovers.told(was, GitReader.of(shutil.which("bwrap") or "", GIT))


def lines(was: leftovers.Before) -> list[str]:
    """Lines that are told, without the first."""
    return [line.strip() for line in told(was).splitlines()[1:]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = repository(tmp_path / "project")
    commit(made)
    return made


def stopped_rebase(project: Path, *arguments: str) -> None:
    """A rebase that goes on with `git rebase --continue`."""
    done = subprocess.run(
        [GIT, *WHO, "rebase", "-q", *arguments, "--exec", "false", "HEAD~1"],
        cwd=project,
        env=variables(project.parent / "home"),
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0


def test_unchanged_files_are_not_told(project: Path) -> None:
    was = before(project)
    commit(project)
    git(project, "switch", "-q", "-c", "side")
    assert told(was) == ""


def test_a_rebase_that_is_left_with_commands(project: Path) -> None:
    was = before(project)
    stopped_rebase(project, "--exec", "false")
    todo = project / ".git" / leftovers.REBASE_LIST
    marker = project.parent / "ran"
    todo.write_text(f"# exec not this\nx\ttouch {marker}\n  exec echo \x1b[2J\r\npick 1234 exec\n")
    said = told(was).splitlines()
    assert said[0].startswith(f"before you go on in {project}, look at what the box has left")
    assert said[1:] == [
        f"  .git/{leftovers.REBASE_LIST}: `git rebase --continue` runs touch {marker}",
        f"  .git/{leftovers.REBASE_LIST}: `git rebase --continue` runs echo \ufffd[2J",
    ]
    # What it warns of is what git does.
    todo.write_text(f"x touch {marker}\n")
    git(project, *WHO, "rebase", "--continue")
    assert marker.exists()
    assert told(was) == ""


def test_a_rebase_that_was_there_is_said_at_once_and_what_is_added_later(project: Path) -> None:
    stopped_rebase(project, "--exec", "make test")
    todo = project / ".git" / leftovers.REBASE_LIST
    todo.write_text("exec make test\n")
    was = before(project)
    assert leftovers.under_way(was).splitlines()[1:] == [
        f"  .git/{leftovers.REBASE_LIST}: make test"
    ]
    assert told(was) == ""
    todo.write_text("exec make test\nexec evil\n")
    assert told(was).endswith("`git rebase --continue` runs evil")
    assert "make test" not in told(was)
    above = leftovers.under_way(before(project.parent))
    assert above.splitlines()[1:] == [
        f"  project/.git/{leftovers.REBASE_LIST}: make test",
        f"  project/.git/{leftovers.REBASE_LIST}: evil",
    ]
    todo.unlink()
    assert leftovers.under_way(before(project)) == ""


def test_linked_worktrees_and_modules_are_looked_at(project: Path) -> None:
    other = repository(project.parent / "other")
    git(project, "submodule", "-q", "add", str(other), "lib")
    was = before(project)
    git(project, "worktree", "add", "-q", str(project / "side"))
    for place in ("worktrees/side", "modules/lib"):
        todo = project / ".git" / place / leftovers.REBASE_LIST
        todo.parent.mkdir()
        todo.write_text("exec evil\n")
    text = told(was)
    assert "  .git/worktrees/side/rebase-merge/git-rebase-todo: " in text
    assert "  .git/modules/lib/rebase-merge/git-rebase-todo: " in text
    assert len(text.splitlines()) == 3


def test_a_new_repository_that_runs_something(project: Path) -> None:
    (project / "had").mkdir()
    git(project / "had", "init", "-q", home=project.parent)
    was = before(project)
    git(project / "had", "config", "core.fsmonitor", "not new", home=project.parent)
    for name in ("plain", "evil"):
        git(project, "clone", "-q", "--no-local", ".", name, home=project.parent)
    git(project / "plain", "config", "core.fsmonitor", "true", home=project.parent)
    git(project / "plain", "config", "alias.st", "status", home=project.parent)
    assert lines(was) == ["had/.git/config: core.fsmonitor = not new"]
    evil = project / "evil"
    for key, value in (("core.fsmonitor", "./x"), ("filter.a b.clean", "y"), ("alias.st", "!z")):
        git(evil, "config", key, value, home=project.parent)
    hook = evil / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    assert lines(was) == [
        "evil/.git/config: core.fsmonitor = ./x",
        "evil/.git/config: filter.a b.clean = y",
        "evil/.git/config: alias.st = !z",
        "had/.git/config: core.fsmonitor = not new",
        "evil/.git/hooks/post-checkout (added): git runs this hook",
    ]


def test_a_repository_is_found_wherever_it_lies(project: Path) -> None:
    """`git status` at the top enters it, once it is in the index."""
    was = before(project)
    deep = repository(project / ".cache/a/b/c/deep")
    assert told(was) == ""
    git(deep, "config", "core.fsmonitor", "one")
    assert lines(was) == [".cache/a/b/c/deep/.git/config: core.fsmonitor = one"]
    (deep / ".git").rename(project / ".cache/moved")
    (deep / ".git").write_text(f"gitdir: {project}/.cache/moved\n")
    assert lines(was) == [".cache/moved/config: core.fsmonitor = one"]


def test_a_working_directory_that_becomes_a_repository(tmp_path: Path) -> None:
    was = before(tmp_path)
    git(tmp_path, "init", "-q", "--bare", ".")
    assert told(was) == ""
    (tmp_path / "config").write_text(
        "\ufeff[a] [CORE] fsmonitor = evil\n[include]\n\tpath = other\n"
    )
    assert lines(was) == ["config: core.fsmonitor = evil", "config: include.path = other"]


def test_a_repository_that_is_still_to_be_made(tmp_path: Path) -> None:
    """A later `git init` takes over the hooks and the configuration that are there."""
    was = before(tmp_path)
    marker = tmp_path / "ran"
    hook = tmp_path / "sub/.git/hooks/post-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    (tmp_path / "sub/.git/config").write_text("[core]\n\tpager = evil\n")
    assert lines(was) == [
        "sub/.git/config: core.pager = evil",
        "sub/.git/hooks/post-commit (added): git runs this hook",
    ]
    # What it warns of is what git does.
    git(tmp_path / "sub", "init", "-q")
    commit(tmp_path / "sub")
    assert marker.exists()


@pytest.mark.parametrize(
    "entry",
    [
        "gc.recentObjectsHook = evil",
        "svn.authorsProg = evil",
        "instaweb.httpd = evil",
        "http.proxy = evil",
        "http.https://example.org.sslVerify = false",
        "http.cookieFile = /home/ada/.bashrc",
        "init.templateDir = evil",
        "url.https://evil.org/.insteadOf = https://example.org/",
        "remote.x.pushUrl = ext::evil",
        "branch.x.remote = ext::evil",
        "remote.pushDefault = ext::evil",
    ],
)
def test_entries_that_run_something_or_send_logins_elsewhere(project: Path, entry: str) -> None:
    was = before(project)
    key, _, value = entry.partition(" = ")
    git(project, "config", key, value)
    # git spells sections and names in lower case, and not what is between them.
    section, name = key.split(".", 1)[0], key.rpartition(".")[2]
    between = key[len(section) : -len(name)]
    assert lines(was) == [f".git/config: {section}{between}{name.lower()} = {value}"]


@pytest.mark.parametrize("elsewhere", ["/", "../../..", "link"])
def test_a_worktree_elsewhere_that_git_would_write_to(project: Path, elsewhere: str) -> None:
    """A submodule's own is in the project."""
    was = before(project)
    (project / "link").symlink_to(project.parent)
    git(project, "init", "-q", "own")
    git(project / "own", "config", "core.worktree", "../../lib")
    git(project, "init", "-q", "sub")
    value = str(project / "link") if elsewhere == "link" else elsewhere
    git(project / "sub", "config", "core.worktree", value)
    assert lines(was) == [f"sub/.git/config: core.worktree = {value}"]


def test_much_is_counted(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    was = before(project)
    todo = project / ".git" / leftovers.REBASE_LIST
    todo.parent.mkdir()
    todo.write_text("".join(f"exec {number} {'x' * 1000}\n" for number in range(100)))
    text = told(was).splitlines()
    assert len(text) == leftovers.MAX_TOLD + 2
    everything = tmp_path / "state/nsm" / leftovers.ALL_KEPT
    left = 100 - leftovers.MAX_TOLD
    assert text[-1] == f"  and {left} more; all of them are in {everything}"
    assert max(map(len, text[:-1])) < 250
    kept = everything.read_text().splitlines()
    assert kept[0] == f"In {project}:"
    assert [f"  {line}" for line in kept[1 : leftovers.MAX_TOLD + 1]] == text[1:-1]
    assert len(kept) == 101


def test_a_list_that_is_no_file(project: Path) -> None:
    was = before(project)
    (project / ".git" / leftovers.REBASE_LIST).mkdir(parents=True)
    (project / ".git/worktrees").symlink_to(project)
    assert lines(was) == [
        f".git/{leftovers.REBASE_LIST}: is not a file; `git rebase --continue` may run its commands"
    ]


EVIL = "[core]\n\tfsmonitor = evil\n"


TEXTS = {
    "vertical tab": '[core]\n\tx = \v\n\tfsmonitor\t=\t"ev"il\n',
    "next line": "[core] x = a\u0085[b]\n fsmonitor = evil\n",
    "continued": "[core]\n\tfsmonitor = ev\\\nil\n",
    "one line": '[a "]"] [CORE]FSMonitor=evil',
    "carriage returns": "[core]\r\n\tfsmonitor = evil\r\n",
    "long": "#" * MAX_CONFIG_BYTES + "\n" + EVIL,
    "broken": "[core\n" + EVIL,
}
PLACES = ("link", "link of git", "pipe", "per worktree", "common", "other file", "index")


def hidden(project: Path, how: str) -> None:
    """Make a repository whose configuration runs something, and hide that."""
    made = repository(project / "a" / "b" / "c" / "d")
    config = made / ".git" / "config"
    match how:
        case "link":
            (project / "text").write_text(EVIL)
            config.unlink()
            config.symlink_to("../../../../../text")
        case "link of git":
            config.write_text(EVIL)
            (made / ".git").rename(project / "text")
            (made / ".git").symlink_to(project / "text")
        case "pipe":
            config.unlink()
            os.mkfifo(config)
        case "per worktree":
            (made / ".git" / "config.worktree").write_text(EVIL)
        case "common":
            shared = project / "shared"
            config.rename(project / "old")
            put(shared / "config", EVIL)
            (made / ".git" / "commondir").write_text(f"{shared}\n")
        case "other file":
            put(project / "e" / ".git", "gitdir: /somewhere/else\n")
        case "index":
            git(made, "config", "core.fsmonitor", "evil")
            git(made, "config", "core.splitIndex", "true")
            git(project, "update-index", "--split-index")
            git(project, "add", "-f", "a/b/c/d")
        case _:
            config.write_bytes(TEXTS[how].encode())


@pytest.mark.parametrize("how", [*TEXTS, *PLACES])
def test_no_configuration_is_hidden(project: Path, how: str) -> None:
    was = before(project)
    hidden(project, how)
    assert told(was) != ""


def test_many_repositories_are_all_looked_at(project: Path) -> None:
    was = before(project)
    for number in range(300):
        place = project / f"r{number}" / ".git"
        place.mkdir(parents=True)
        (place / "HEAD").write_text("ref: refs/heads/main\n")
        (place / "config").write_text("[user]\n\tname = x\n")
    assert told(was) == ""
    (project / "r299/.git/config").write_text(EVIL)
    assert lines(was) == ["r299/.git/config: core.fsmonitor = evil"]


@pytest.mark.parametrize("how", ["long", "link", "link above", "pipe"])
def test_no_list_of_a_rebase_is_hidden(project: Path, how: str) -> None:
    was = before(project)
    todo = project / ".git" / leftovers.REBASE_LIST
    text = "exec evil\n"
    if how == "link above":
        (project / "aside").mkdir()
        (project / "aside" / todo.name).write_text(text)
        todo.parent.symlink_to("../aside")
    else:
        todo.parent.mkdir()
        if how == "long":
            todo.write_text("#" * leftovers.MAX_LIST_BYTES + "\n" + text)
        elif how == "link":
            (project / "aside").write_text(text)
            todo.symlink_to("../../aside")
        else:
            os.mkfifo(todo)
    assert told(was) != ""


# -------------------------------------------------------------------------- files of the table


def put(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_that_would_be_run_are_told_with_who_runs_them(project: Path) -> None:
    put(project / "had/.vscode/tasks.json")
    put(project / "same/.mcp.json")
    was = before(project)
    put(project / "had/.vscode/tasks.json", "y")
    put(project / "sub/deep/er/still/.MCP.json")
    put(project / "config/Code/User/settings.json")
    put(project / ".cargo/config.toml")
    put(project / "AGENTS.md")
    put(project / "node_modules/one/.vscode/tasks.json")
    put(project / "node_modules/two/.envrc")
    put(project / "kit/.claude/settings.json")
    put(project / "kit/.claude/hooks/x.sh")
    in_home = "VS Code and its forks, if ~/.config has it or a link to it"
    assert lines(was) == [
        ".cargo/config.toml (added): Cargo, at its next call, whatever the call is for",
        "had/.vscode/tasks.json (changed): VS Code and its forks, when it opens the directory",
        "kit/.claude: 2 files (added): Claude Code, when it starts in the directory",
        f"config/Code/User/settings.json (added): {in_home}",
        "sub/deep/er/still/.MCP.json (added): Claude Code, when it starts in the directory",
        "in directories node_modules: 2 files that would be run if opened as a project",
    ]


CONTENTS = {
    "Cargo.toml": ('build = "x.rs"', 'proc-macro2 = "1"\n[build-dependencies]'),
    "a/Cargo.toml": ('package = { name = "a", "build"="x" }', 'builder = "1"'),
    "b/Cargo.toml": ("[lib]\nproc-macro = true", "[dependencies]"),
    "pyproject.toml": ("[tool.pylint.main]\ninit-hook = ''", "[tool.ruff]\nline-length = 100"),
    "a/pyproject.toml": ('[tool.mypy]\nplugins = "./x.py"', '[project]\nname = "a"'),
    "b/pyproject.toml": ('"\\u0069nit-hook" = 1', 'name = "b"'),
    "setup.cfg": ("[pylint]\nINIT-HOOK=x", "[metadata]\nname = x"),
    "tox.ini": ("[flake8:local-plugins]", "[tox]"),
    "package.json": ('{"lint-staged": {"*": "x"}}', '{"devDependencies": {"lint-staged": "^9"}}'),
    "a/package.json": ('{"prettier" : "./x.js"}', '{"dependencies": {"prettier": "3.1"}}'),
    "pom.xml": ("<build><extensions>", "<dependencies>"),
    "x.csproj": ('<Target Name="x">', '<Project Sdk="Microsoft.NET.Sdk">'),
    ".env": ("export LD_PRELOAD=./x.so", "PORT=8080"),
    "a/.env": ("A=$(x)", "LD=1"),
}
"""By path: content that has the host run something, and harmless content."""


@pytest.mark.parametrize("path", CONTENTS)
def test_a_file_that_is_mostly_harmless_is_told_if_it_runs_something(
    project: Path, path: str
) -> None:
    runs, harmless = CONTENTS[path]
    put(project / path, f"{harmless}\n")
    was = before(project)
    put(project / path, f"{harmless}\n{harmless}\n")
    put(project / "node_modules/x" / path, runs)
    assert lines(was) == []
    put(project / path, f"{harmless}\n{runs}\n")
    assert [line.split(" (")[0] for line in lines(was)] == [path]


@pytest.mark.parametrize("how", ["long", "UTF-16", "link", "pipe"])
def test_content_that_nobody_can_read_is_told(project: Path, how: str) -> None:
    was = before(project)
    path = project / "Cargo.toml"
    if how == "long":
        path.write_text("#" * (1 << 20) + "\n")
    elif how == "UTF-16":
        path.write_text("x = 1", encoding="utf-16")
    elif how == "link":
        path.symlink_to("elsewhere")
    else:
        os.mkfifo(path)
    assert len(lines(was)) == 1


def test_a_directory_with_the_name_of_such_a_file_does_not_count(project: Path) -> None:
    was = before(project)
    put(project / ".env/bin/activate", "export PATH=x")
    put(project / ".env/.vscode/tasks.json")
    assert [line.split(" (")[0] for line in lines(was)] == [".env/.vscode/tasks.json"]


def test_files_with_one_ending_are_told_together(project: Path) -> None:
    put(project / "cmake/a.cmake")
    was = before(project)
    put(project / "cmake/a.cmake", "changed")
    for number in range(30):
        put(project / f"build/CMakeFiles/{number}.cmake")
    reason = "editors that run CMake, when it opens the directory"
    assert lines(was) == [f"cmake/a.cmake and 30 more *.cmake (added or changed): {reason}"]


def test_targets_of_links_with_such_names_are_told(project: Path) -> None:
    for name in ("m.json", "sub/gitconfig", "sub/hooks/pre-commit", "cr/hooks/x", "a/x", "b/x"):
        put(project / name, "")
    repository(project / "sub" / "repo")
    shutil.rmtree(project / "sub/repo/.git/hooks")
    (project / "sub/repo/.git/config").unlink()
    for name, target in {
        "sub/.mcp.json": "../m.json",
        "sub/repo/.git/hooks": "../../hooks",
        "sub/repo/.git/config": "../../gitconfig",
        ".clinerules": "cr",
        "a/.amp": "../b",
        "b/.amp": "../a",
    }.items():
        (project / name).symlink_to(target)
    (project / "sub/hooks/pre-commit").chmod(0o755)
    was = before(project)
    assert told(was) == ""
    for name in ("m.json", "sub/gitconfig", "sub/hooks/pre-commit", "cr/hooks/x", "a/x"):
        (project / name).write_text("changed")
    assert [line.partition(": ")[0] for line in lines(was)] == [
        "sub/hooks/pre-commit (changed)",
        "sub/repo/.git/config -> ../../gitconfig (changed)",
        "sub/.mcp.json -> ../m.json (changed)",
        ".clinerules/hooks/x (changed)",
        "b/.amp/x (changed)",
    ]


def test_a_project_that_is_its_own_editor_settings(project: Path) -> None:
    put(project / "tasks.json")
    (project / ".vscode").symlink_to(".")
    was = before(project)
    (project / "tasks.json").write_text("changed")
    assert [line.partition(": ")[0] for line in lines(was)] == [".vscode/tasks.json (changed)"]


def test_names_that_come_by_renames_and_links_are_told(project: Path) -> None:
    put(project / "pack/inner/tasks.json")
    put(project / "real/tasks.json")
    (project / "linked").mkdir()
    (project / "linked/.vscode").symlink_to("../real")
    put(project / "node_modules/one/.idea/workspace.xml")
    was = before(project)
    (project / "pack/inner").rename(project / "pack/.vscode")
    put(project / "real/tasks.json", "changed behind the link")
    os.link(project / "real/tasks.json", project / ".exrc")
    (project / "node_modules/one").rename(project / "one")
    (project / ".zed").symlink_to("real")
    assert [line.split(" (")[0] for line in lines(was)] == [
        ".exrc",
        ".zed: 2 files",
        "linked/.vscode/tasks.json",
        "one/.idea/workspace.xml",
        "pack/.vscode/tasks.json",
    ]


def test_places_that_were_not_looked_at_are_told(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was = before(project)
    monkeypatch.setattr(leftovers, "MAX_ENTRIES", 3)
    assert lines(was) == [
        "there are more than 3 names here: those deepest in it were not looked at"
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="not here: root can read anything")
def test_a_directory_that_is_closed_is_told(project: Path) -> None:
    was = before(project)
    (project / "closed").mkdir(mode=0)
    assert lines(was) == ["closed: this directory cannot be read, and was not looked at"]


def test_old_files_that_were_not_looked_at_are_not_new(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(project / "a/b/c/.vscode/tasks.json")
    os.utime(project / "a/b/c/.vscode/tasks.json", (1, 1))
    with monkeypatch.context() as patched:
        patched.setattr(leftovers, "MAX_ENTRIES", 1)
        was = before(project)._replace(at=2**62)
    assert told(was) == ""


def test_a_configuration_of_a_worktree_that_git_would_read_is_made(project: Path) -> None:
    path = f"{project}/.git/config.worktree"

    def guarded() -> guarded_files.Guarded:
        home = project.parent / "home"
        return guarded_files.look(
            str(project), look(project, home), git=GIT, variables=variables(home)
        )

    assert path not in guarded().read_only
    git(project, "config", "extensions.worktreeConfig", "true")
    git(project, "worktree", "add", "-q", str(project / "side"))
    found = guarded()
    assert {path, f"{project}/.git/worktrees/side/config.worktree"} <= set(found.read_only)
    guarded_files.make(found)
    assert git(project, "status", "--porcelain") == "?? side/\n"
    with open(path, encoding="utf-8") as file:
        assert file.read() == ""
