"""Nix, a store of our own, and the layer's outputs built there: each once for all workers.

Nothing is fetched: nixpkgs is stood in for by the host's own programs (tools/standin.py). Jails are
made by our stand-in for jail.nix and, where NSM_TEST_JAIL_NIX names its tree, by the real one. What
was built stays for the next run of the tests, until `make clean`.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bootstrap
import standin

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
WITH_NODE = {"claudebox", "default", "presets.node"}
"""The flake's outputs that Node is a part of."""

REAL_JAIL_NIX = os.environ.get(standin.JAIL_NIX_VARIABLE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_no_nix()
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("nix")
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def why_no_nix() -> str | None:
    """Explain why nothing can be built here, if it can't. In CI that fails the run: a layer
    untested is no property of the machine that its owner would hear of otherwise."""
    lacking = [name for name in bootstrap.TEST_PROGRAMS if shutil.which(name) is None]
    if not lacking:
        return None
    missing = f"no {', '.join(lacking)}"
    if failed := bootstrap.not_installed():
        return f"{missing}, and set-up could not install {', '.join(failed)}"
    if not bootstrap.may_install_test_packages():
        packages = " ".join(bootstrap.TEST_PROGRAMS[name] for name in lacking)
        return f"{missing}, and set-up may not install it (Debian: apt-get install {packages})"
    return f"{missing}; `make test` brings it"


@pytest.fixture(scope="session")
def place() -> standin.Place:
    """A store with the seed in it, and the clone and the stand-ins as flakes."""
    place = standin.default_place()
    standin.prepare(place)
    return place


@pytest.fixture(scope="session")
def node_in_store(place: standin.Place) -> None:
    """Skip where the stand-in has no Node, since the host has none that works outside of /usr."""
    if "nodejs" in place.missing():
        pytest.skip("not here: no node that works outside of /usr")


@pytest.fixture(scope="session", params=["stand-in", *(["jail.nix"] if REAL_JAIL_NIX else [])])
def jail(request: pytest.FixtureRequest, place: standin.Place) -> Path:
    """The flake that makes the jails."""
    if request.param == "jail.nix":
        assert REAL_JAIL_NIX is not None
        return Path(REAL_JAIL_NIX)
    return place.stand_in_jail


@pytest.fixture(scope="session")
def built(
    request: pytest.FixtureRequest, place: standin.Place, jail: Path
) -> Callable[[str], Path]:
    """Build an output of the flake, or find it built; gives its path in the store."""
    roots = place.root / "roots" / jail.name
    roots.mkdir(parents=True, exist_ok=True)

    @cache
    def build(attribute: str) -> Path:
        if attribute in WITH_NODE:
            request.getfixturevalue("node_in_store")
        link = roots / attribute
        return standin.build(place, standin.attribute_of(attribute), link, jail=jail)

    return build
