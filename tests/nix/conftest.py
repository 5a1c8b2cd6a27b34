"""Nix, a store of our own, and the layer's outputs built there: each once for all workers.

Nothing is fetched: nixpkgs is stood in for by the host's own programs, and jail.nix by ours unless
NSM_TEST_JAIL_NIX names its tree (tools/standin.py). What was built stays for the next run of the
tests, until `make clean`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bootstrap
import standin

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_no_nix()
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("nix")
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def why_no_nix() -> str | None:
    """Why there is no Nix, if there is none."""
    if shutil.which("nix"):
        return None
    if bootstrap.may_install_test_packages():
        return "nix is missing"  # `make test` would have installed it
    return "not here: no nix, and none that set-up may install"


@pytest.fixture(scope="session")
def place() -> standin.Place:
    """A store with the seed in it, and the clone and the stand-ins as flakes."""
    place = standin.default_place()
    standin.prepare(place)
    return place


@pytest.fixture(scope="session")
def built(place: standin.Place) -> Callable[[str], Path]:
    """Build an output of the flake, or find it built; gives its path in the store."""

    def build(attribute: str) -> Path:
        roots = place.root / "roots"
        roots.mkdir(exist_ok=True)
        return standin.build(place, standin.attribute_of(attribute), roots / attribute)

    return build
