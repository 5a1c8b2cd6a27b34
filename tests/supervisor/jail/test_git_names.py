"""git's configuration in jails."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from isolation.weakjails import forking
from nsmd.jail.host import GitSettings
from nsmd.manager.projects import check_project
from nsmd.model.values import ProjectMount
from realjail import (
    SYSTEM_PATH,
    environments,
    jail_spec,
    launched,
    mount_of,
    needs_bwrap,
    new_launcher,
    open_directory,
    talking_to,
)

TRUST = "[safe]\n\tdirectory = *\n"


def settings(home: Path, text: str, path: str = SYSTEM_PATH) -> GitSettings:
    (home / ".gitconfig").write_text(text)
    return GitSettings(path, {"HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"})


@pytest.mark.parametrize(
    ("text", "user"),
    [
        (
            "[user]\nname = Ada\nemail = a@b.c\n[credential]\nhelper = store\n",
            '[user]\n\tname = "Ada"\n\temail = "a@b.c"\n',
        ),
        ("[user]\nname = Ada\n", '[user]\n\tname = "Ada"\n'),
        ("[user]\nname = Ada\nname = Eve\n", '[user]\n\tname = "Eve"\n'),
        ("", ""),
        ("[broken", ""),
    ],
)
async def test_the_users_name_and_nothing_else(tmp_path: Path, text: str, user: str) -> None:
    assert await settings(tmp_path, text).of(None) == f"{user}{TRUST}"


def repository(directory: Path) -> ProjectMount:
    """A repository with a commit."""
    run = partial(subprocess.run, check=True, env={**os.environ, "HOME": "/nowhere"})
    me = ["-c", "user.name=x", "-c", "user.email=x"]
    run(["git", "init", "-q", str(directory)])
    run(["git", "-C", str(directory), *me, "commit", "-q", "--allow-empty", "-m", "first"])
    return mount_of(directory)


async def test_a_name_for_some_directories(tmp_path: Path) -> None:
    """A repository that is broken does not hide the name for all."""
    work, other, broken = (tmp_path / name for name in ("work", "other", "broken"))
    mine = f'[user]\nname = Ada\n[includeIf "gitdir:{work}/"]\npath = {tmp_path}/of-work\n'
    (tmp_path / "of-work").write_text("[user]\nname = Dr. Ada\n")
    found = settings(tmp_path, mine)
    assert '"Dr. Ada"' in await found.of(repository(work))
    assert '"Ada"' in await found.of(repository(other))
    there = repository(broken)
    (broken / ".git/config").write_text("[broken")
    assert '"Ada"' in await found.of(there)


@pytest.mark.jail
@needs_bwrap
@pytest.mark.parametrize("kind", ["cold", "forked"])
async def test_a_linked_worktree_is_a_repository_in_a_session(kind: str) -> None:
    # Not below /tmp, which forks have for themselves.
    with open_directory("/var/tmp") as place:
        linked = linked_worktree(place)
        project = check_project(str(linked), "/project", "/nowhere")
        spec = jail_spec(environments()["bash"], project)
        async with forking(new_launcher()) as launcher:
            one = launcher if kind == "forked" else new_launcher()
            async with launched(one, spec) as jail, talking_to(jail, "bash") as session:
                outcome = await session.run(
                    "git -C /project log --format=%s; git -C /project tag x"
                )
            assert launcher.reasons == {}
            assert jail.policy is not None
            shown = jail.policy.mount_at(f"{place}/repository/.git")
    assert outcome.stdout == "first\n", outcome.stderr
    assert "Read-only file system" in outcome.stderr
    assert (shown and shown.path, shown and shown.mode) == (f"{place}/repository/.git", "ro")


def linked_worktree(place: Path) -> Path:
    repository(place / "repository")
    linked = place / "linked"
    words = ["git", "-C", str(place / "repository"), "worktree", "add", "-q", str(linked)]
    subprocess.run(words, check=True)
    return linked


COMMITS = """
git -C /project log --format=%s || exit
git init -q copy && cd copy && git commit -q --allow-empty -m x && git log --format='%an <%ae>'
git config user.name 'Somebody Else' && git commit -q --allow-empty -m x && git log -1 --format=%an
"""


@pytest.mark.jail
@needs_bwrap
async def test_git_in_a_session(tmp_path: Path) -> None:
    """Under a supervisor of root, the project belongs to another user than the one in the jail."""
    launcher = new_launcher()
    launcher.git = settings(tmp_path, "[user]\nname = Ada Lovelace\nemail = ada@example.org\n")
    with open_directory() as project:
        spec = jail_spec(environments()["bash"], repository(project))
        async with launched(launcher, spec) as jail, talking_to(jail, "bash") as session:
            outcome = await session.run(COMMITS)
    told = ["first", "Ada Lovelace <ada@example.org>", "Somebody Else"]
    assert outcome.stdout.splitlines() == told, outcome.stderr
