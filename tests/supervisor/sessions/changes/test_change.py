"""Warnings about changes that nobody should apply unseen."""

from __future__ import annotations

import pytest

from nsmd.sessions.changes.comparison import PathState, risk_of

FILE = PathState(type="file", mode=0o644, size=1, token="")
LINK = PathState(type="symlink", mode=0, size=1, token="")
DIRECTORY = PathState(type="directory", mode=0o755, size=0, token="")


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks/pre-commit",
        ".git/config",
        ".git/config.worktree",
        ".git/info/attributes",
        ".git/objects/info/alternates",
        ".git/modules/lib/config",
        ".git/worktrees/w/gitdir",
        ".GIT/config",
        "vendor/lib/.git/hooks/post-checkout",
        ".git",  # a file that says where the repository is
        *("HEAD", "a.git/HEAD", "sub/head"),  # a repository under another name
    ],
)
def test_files_that_git_obeys_are_a_risk(path: str) -> None:
    assert "git" in risk_of(path, FILE)


@pytest.mark.parametrize(
    "path",
    [
        *(".envrc", "sub/.envrc", ".npmrc", ".mcp.json", ".pre-commit-config.yaml"),
        *(".vscode/tasks.json", "x/.vscode/settings.json", ".idea/workspace.xml"),
        *(".claude/settings.json", ".cursor/mcp.json", ".husky/pre-push"),
        *(".github/workflows/ci.yml", ".cargo/config.toml", ".Envrc", ".gitlab-ci.yml"),
        *(".circleci/config.yml", ".nvim.lua", "mise.toml", ".mise.toml", ".mise/config.toml"),
        *(".gitmodules", "Gemfile", "CMakeLists.txt", ".clinerules/hooks/x", "x.nimble"),
        *("pylintrc.toml", "prettier.config.mts", "Cargo.toml", ".agents/hooks.json"),
        *("lefthook.yml", ".lefthook/pre-push/x", "AGENTS.md", "sub/CLAUDE.md", ".cursorrules"),
    ],
)
def test_files_that_tools_obey_are_a_risk(path: str) -> None:
    assert "without being told" in risk_of(path, FILE)


@pytest.mark.parametrize(
    "path",
    [
        *(".git/objects/ab/cdef", ".git/refs/heads/main", ".git/index", ".git/HEAD"),
        *(".git/logs/HEAD", ".git/COMMIT_EDITMSG", ".git/packed-refs"),
        *("src/main.py", "hooks/pre-commit", "config", ".gitignore", "a.git/config"),
        *("src/HEAD.md", "forehead", "MANAGENTS.md", "promise.toml"),
        *("envrc", ".github/CODEOWNERS", "vscode/tasks.json", "x.vscode/tasks.json"),
    ],
)
def test_ordinary_files_are_no_risk(path: str) -> None:
    assert risk_of(path, FILE) == ""


def test_directories_and_deletions_are_no_risk() -> None:
    assert risk_of(".git/hooks", DIRECTORY) == ""
    assert risk_of(".git/hooks/pre-commit", None) == ""


@pytest.mark.parametrize(
    ("path", "target", "outside"),
    [
        ("link", "/etc/passwd", True),
        ("link", "../secret", True),
        ("a/b/link", "../../../secret", True),
        ("a/b/link", "../../file", False),
        ("a/link", "../..", True),
        ("link", "..", True),
        ("link", "..file", False),
        ("a/link", "sibling", False),
        ("link", "here/../secret", True),  # `here` may be a link to `.`
        ("a/link", "../b/./c", False),
        ("a/link", "./../b", False),
    ],
)
def test_links_that_lead_out_of_the_project_are_named(
    path: str, target: str, *, outside: bool
) -> None:
    assert ("out of the project" in risk_of(path, LINK, target)) == outside
