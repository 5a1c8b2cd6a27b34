"""Copies of local flakes, for Nix to read in place of repositories that others can write to."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio

from nsm import git
from nsm.wire.errors import NixFailedError


@asynccontextmanager
async def flake_copy(
    project: str, tree: str, variables: Mapping[str, str]
) -> AsyncGenerator[tuple[str, str]]:
    """Give the directory in which Nix is to run, and the reference to the flake from there.

    Nix asks git which files belong to a flake, and git would run what the repository's
    configuration names, which code in a session or a box may have written. So Nix gets a copy of
    the files that git tracks. Without a repository it has no use for git, and is kept from looking
    for one.

    Args:
        project: the directory of the flake.
        tree: directory for the copy; of no other user of this function. It is gone afterwards.
        variables: Nix's environment.

    Raises:
        NixFailedError: git cannot tell which files these are.
        OSError: the copy cannot be made.
    """
    remove = partial(shutil.rmtree, tree, ignore_errors=True)
    await trio.to_thread.run_sync(remove)  # of a supervisor that was killed
    os.makedirs(tree, mode=0o700)
    try:
        place = await trio.to_thread.run_sync(_copy, project, tree, variables)
        # A flake below the top may use files above it, which `path:` does not show to it.
        yield place or project, "path:." if place in (None, tree) else "."
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(remove)


def _copy(project: str, tree: str, variables: Mapping[str, str]) -> str | None:
    try:
        place = git.copy_tracked(project, tree, variables)
    except git.GitError as error:
        raise NixFailedError(
            f"The files of {project} are not known: {error}.",
            hint="Repair the repository: `git status` shows it.",
        ) from error
    if place == tree:
        shutil.rmtree(os.path.join(tree, ".git"))
    return place
