"""Environments that a client sees, precedence among equal names, and errors for unknown names."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import pytest
import trio

from fakes import BASH, BROKEN, PYTHON
from nsm.wire.errors import UnknownEnvironmentError
from nsmd.environments.catalog import MAX_REMOVED, Catalog, EnvironmentSource, ProjectSource, Rank
from nsmd.model.values import Artifact, ClientIdentity, Environment, Sources

EVERYONE = ClientIdentity(name="editor", scope="alice")
OWN = ClientIdentity(name="editor", scope="bob", sources=Sources(directory="/own", metadata="{}"))

DIRECTORY = EnvironmentSource(rank=Rank.DIRECTORY)
OWN_DIRECTORY = EnvironmentSource(rank=Rank.CLIENT_DIRECTORY, of="/own")


def built(name: str, where: str = "/d") -> Environment:
    run = f"{where}/{name}/bin/run"
    return Environment(
        name=name,
        interpreter="python",
        source=f"{where}/{name}",
        artifact=Artifact(run=run, session_run=run),
    )


def names(catalog: Catalog, client: ClientIdentity = EVERYONE) -> list[str]:
    return [environment.name for environment in catalog.environments(client)]


def test_the_higher_rank_wins_in_the_place_of_the_lower(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsmd.environments.catalog")
    catalog = Catalog([PYTHON, BASH])
    ranks = [rank for rank in Rank if EnvironmentSource(rank=rank).only_for is None]
    ranks.remove(Rank.CONFIGURED)
    assert ranks == [Rank.HOST, Rank.METADATA, Rank.BUILT, Rank.DIRECTORY]
    for rank in reversed(ranks[1:]):
        catalog.put(EnvironmentSource(rank=rank), [built("python", f"/{rank.name}")])
    assert catalog.find(EVERYONE, "python").source == "/DIRECTORY/python"
    assert names(catalog) == ["python", "bash"]
    (row, _) = catalog.listed()
    assert row.hides == ("preset", "/METADATA/python", "/BUILT/python")
    assert "python of /DIRECTORY/python is new" in caplog.text
    assert "of /DIRECTORY/python hides that of preset, /METADATA/python, /BUILT" in caplog.text


def test_a_clients_own_are_for_clients_with_the_same_entry_only() -> None:
    catalog = Catalog([PYTHON])
    assert names(catalog, OWN) == ["python"]
    assert catalog.view(OWN) is catalog.view(
        EVERYONE
    )  # views of clients that went must not pile up
    catalog.put(OWN_DIRECTORY, [built("python", "/own"), built("mine", "/own")])
    catalog.put(EnvironmentSource(rank=Rank.CLIENT_METADATA, of="{}"), [built("meta")])
    catalog.put(EnvironmentSource(rank=Rank.CLIENT_DIRECTORY, of="/other"), [built("theirs")])
    assert names(catalog, OWN) == ["python", "meta", "mine"]
    assert catalog.view(OWN).hides == {"python": ("preset",)}
    assert [row.hides for row in catalog.listed() if row.only_for][1:] == [("preset",), (), ()]
    assert catalog.find(OWN, "python").source == "/own/python"
    assert names(catalog, EVERYONE) == ["python"]
    assert catalog.find(EVERYONE, "python") == PYTHON
    with pytest.raises(UnknownEnvironmentError):
        catalog.find(EVERYONE, "mine")
    catalog.drop(OWN_DIRECTORY)
    catalog.drop(OWN_DIRECTORY)
    assert names(catalog, OWN) == ["python", "meta"]


def test_subscribers_are_told_of_changes_and_of_nothing_else() -> None:
    catalog = Catalog([PYTHON])
    told: list[int] = []
    unsubscribe = catalog.subscribe(lambda: told.append(len(names(catalog))))
    catalog.put(DIRECTORY, [built("science")])
    catalog.put(DIRECTORY, [built("science")])
    catalog.put(OWN_DIRECTORY, [])
    catalog.drop(OWN_DIRECTORY)
    assert told == [2]
    catalog.put(DIRECTORY, [])
    assert told == [2, 1]
    unsubscribe()
    unsubscribe()
    catalog.put(DIRECTORY, [built("science")])
    assert told == [2, 1]


def test_an_unknown_one_is_told_what_there_is() -> None:
    catalog = Catalog([PYTHON, BASH, BROKEN])
    catalog.put(DIRECTORY, [built("data-science")])
    with pytest.raises(UnknownEnvironmentError) as error:
        catalog.find(EVERYONE, "datascience")
    assert str(error.value) == (
        "No environment 'datascience'. Did you mean 'data-science'? "
        "Available: python, bash, data-science."
    )
    assert error.value.data == {"available": ["python", "bash", "data-science"]}


def test_a_removed_environment_is_told_until_it_is_back() -> None:
    catalog = Catalog([PYTHON])
    catalog.put(DIRECTORY, [built("science")])
    catalog.put(DIRECTORY, [])
    with pytest.raises(
        UnknownEnvironmentError,
        match=r"'science' was removed: /d/science has it no more\. .*python",
    ):
        catalog.find(EVERYONE, "science")
    catalog.put(DIRECTORY, [built("science")])
    assert catalog.find(EVERYONE, "science")
    catalog.put(DIRECTORY, [built(f"x{number}") for number in range(2 * MAX_REMOVED)])
    catalog.put(DIRECTORY, [])
    with pytest.raises(UnknownEnvironmentError, match="No environment 'science'"):
        catalog.find(EVERYONE, "science")


class FakeShells(ProjectSource):
    """Projects with an environment of their own, by name of the client."""

    def __init__(self, shells: dict[str, Environment]) -> None:
        super().__init__()
        self.shells = shells

    def environments(self, client: ClientIdentity) -> Sequence[Environment]:
        return [shell for name, shell in self.shells.items() if name == client.name]

    def rows(self) -> Sequence[Environment]:
        return list(self.shells.values())

    def is_current(self, environment: Environment) -> bool:
        return environment.source in {row.source for row in self.rows()}

    def settled(self, client: ClientIdentity, name: str) -> trio.Event | None:
        return None


def test_a_projects_own_comes_after_all_others_and_hides_none() -> None:
    shell = Environment(name="project", interpreter="bash", source="/p/flake.nix")
    shells = FakeShells({"editor": shell})
    catalog = Catalog([PYTHON], shells)
    other = dataclasses.replace(EVERYONE, name="other")
    assert (names(catalog), names(catalog, other)) == (["python", "project"], ["python"])
    assert catalog.find(EVERYONE, "project") == shell
    with pytest.raises(UnknownEnvironmentError, match="Available: python, project"):
        catalog.find(EVERYONE, "science")
    with pytest.raises(UnknownEnvironmentError):
        catalog.find(other, "project")
    (*_, row) = catalog.listed()
    assert (row.item, row.only_for) == (shell, "its project")
    assert catalog.reachable()(dataclasses.replace(shell, description="of another client"))
    catalog.put(DIRECTORY, [built("project")])
    assert catalog.find(EVERYONE, "project") == built("project")
    assert names(catalog) == ["python", "project"], "and is not told where it cannot be meant"
    told: list[None] = []
    catalog.subscribe(lambda: told.append(None))
    shells.changed()
    assert told == [None]
