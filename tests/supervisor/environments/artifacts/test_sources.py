"""Directories that variables name, and how long they stay watched."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from dummy_artifacts import artifact
from nsmd.environments.artifacts import discovery
from nsmd.environments.artifacts.discovery import ArtifactDiscovery, Scan
from nsmd.environments.catalog import Catalog
from nsmd.host import source_watcher
from nsmd.host.paths import trusted_owners
from nsmd.host.source_watcher import open_source_watcher
from nsmd.model.settings import Defaults
from nsmd.model.values import ClientIdentity, Sources

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

TIMEOUT_S = 120


@asynccontextmanager
async def discovering(
    home: Path, named: Sources | None = None
) -> AsyncGenerator[tuple[ArtifactDiscovery, Catalog]]:
    async with open_source_watcher() as it:
        catalog = Catalog()
        found = ArtifactDiscovery(it, catalog, Defaults(), owners=trusted_owners(), home=str(home))
        await found.begin(named or Sources(), str(home / "usual"))
        yield found, catalog


def names(catalog: Catalog, own: Sources | None = None) -> list[str]:
    client = ClientIdentity(name="editor", scope="s", sources=own)
    return [environment.name for environment in catalog.environments(client)]


async def test_the_usual_directory_is_not_looked_at_if_another_is_named(tmp_path: Path) -> None:
    artifact(tmp_path / "usual", "one")
    artifact(tmp_path / "named", "two")
    async with discovering(tmp_path) as (_, catalog):
        assert names(catalog) == ["one"]
    async with discovering(tmp_path, Sources(directory="~/named")) as (_, catalog):
        assert names(catalog) == ["two"]


async def test_a_clients_own_last_as_long_as_somebody_has_them(tmp_path: Path) -> None:
    artifact(tmp_path / "own", "mine")
    own = Sources(directory=str(tmp_path / "own"), metadata="{", flakes=("a#b",))
    async with discovering(tmp_path) as (found, catalog):
        async with found.opened(None), found.opened(own):
            assert names(catalog, own) == ["mine"]
            async with found.opened(own):
                assert names(catalog, own) == ["mine"]
            artifact(tmp_path / "own", "more")
            await found.search_again(ClientIdentity(name="editor", scope="s", sources=own))
            assert names(catalog, own) == ["mine", "more"]
        assert names(catalog, own) == []
        assert list(catalog.listed()) == []


async def test_one_clients_directory_that_hangs_is_nobody_elses_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_watcher, "LOOK_TIMEOUT_S", 0.05)
    usual = discovery.scan_directory
    goes_on = threading.Event()

    def scan(directory: str, *args: object, **named: object) -> Scan:
        if directory == "/net":
            goes_on.wait(TIMEOUT_S)
            return Scan()
        return usual(directory, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(discovery, "scan_directory", scan)
    try:
        async with (
            discovering(tmp_path) as (found, catalog),
            found.opened(Sources(directory="/net")),
        ):
            monkeypatch.setattr(source_watcher, "LOOK_TIMEOUT_S", TIMEOUT_S)
            artifact(tmp_path / "usual", "one")
            with trio.fail_after(TIMEOUT_S / 2):
                await found.search_again(ClientIdentity(name="editor", scope="s"))
            assert names(catalog) == ["one"]
    finally:
        goes_on.set()
