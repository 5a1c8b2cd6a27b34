"""Output of a build as nix reports it, and a check that it is a sandbox."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, cast

from nsm.dataclass import replace
from nsm.wire.errors import NixFailedError
from nsmd.environments.artifacts.discovery import ArtifactError, read_artifact
from nsmd.model.flakes import shown
from nsmd.model.settings import Defaults
from nsmd.model.values import Environment

EXPECTED = (
    "Expected is what `lib.mkSandbox` of nsm's flake makes: a directory with metadata.json and "
    "bin/run. A plain package becomes one with `lib.mkSandbox { ...; packages = [ ... ]; }` "
    "(docs/how-to/nix.md)."
)


class NoSandboxError(NixFailedError):
    """Something was built in which code cannot run."""

    def __init__(self, reference: str, path: str, why: str) -> None:
        self.path = path
        self.why = why
        super().__init__(
            f"{shown(reference)} yields no sandbox: {path}: {why}.",
            hint=EXPECTED,
            data={"path": path},
        )


def built_path(stdout: bytes, reference: str) -> str:
    """Read the store path of the single result from `nix build --json`.

    Raises:
        NoSandboxError: Nix built nothing, or printed something else.
    """
    try:
        said: object = json.loads(stdout)
    except (ValueError, RecursionError):
        said = None
    paths: list[str] = []
    for built in cast("list[object]", said) if isinstance(said, list) else []:
        outputs: object = cast("dict[str, Any]", built).get("outputs") if _is_map(built) else None
        if _is_map(outputs):
            named = cast("dict[str, Any]", outputs)
            path: object = named.get("out", next(iter(named.values()), None))
            if isinstance(path, str) and path.startswith("/") and path.isprintable():
                paths.append(path)
    if len(paths) != 1:
        why = f"nix names {len(paths)} things that it built, not one ({stdout[:200]!r})"
        raise NoSandboxError(reference, "nix build", why)
    return paths[0]


def sandbox(
    path: str, reference: str, defaults: Defaults, owners: Collection[int], *, name: str = ""
) -> Environment:
    """Make the environment of a build. Blocks.

    Args:
        path: path in Nix's store.
        reference: its reference, to show.
        defaults: limits if it sets none.
        owners: users whose programs may be run.
        name: name for it; empty for its own.

    Raises:
        NoSandboxError: it cannot be used.
    """
    try:
        environment = read_artifact(path, defaults, owners, source=shown(reference))
    except ArtifactError as error:
        raise NoSandboxError(reference, path, str(error)) from None
    return replace(environment, name=name) if name else environment


def _is_map(value: object) -> bool:
    return isinstance(value, dict)
