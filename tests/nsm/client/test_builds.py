"""`client.builds` of both clients, against a fake supervisor and word for word alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import nsm
from fakesupervisor import Exchange, FakeSupervisor
from nsm.wire.environments import BuiltRow, RemoveReport
from nsm.wire.errors import UnknownEnvironmentError
from nsm.wire.messages import read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW: dict[str, Any] = {
    "name": "science",
    "reference": "github:me/envs#science",
    "state": "ready",
    "wanted_by": ["nsm env add"],
    "path": "/nix/store/x",
    "built_at": 1.5,
    "since_s": None,
    "progress": None,
    "cause": None,
    "error": None,
    "hint": None,
}
PROGRESS: dict[str, Any] = {
    "phase": "building",
    "activity": "",
    "built": 0,
    "to_build": 1,
    "copied": 0,
    "to_copy": 0,
    "downloaded_bytes": 0,
    "to_download_bytes": 0,
}


def add(exchange: Exchange) -> dict[str, Any]:
    exchange.emit("progress", {"environment": {**ROW, "state": "building", "progress": PROGRESS}})
    return {"environment": ROW}


def log(exchange: Exchange) -> dict[str, Any]:
    for text in ("one\n", "two\n"):
        exchange.emit("log", {"text": text})
    return {"environment": ROW}


def remove(_: Exchange) -> dict[str, Any]:
    error = UnknownEnvironmentError("No environment 'x'.").to_wire()
    gone = {"name": "science", "reference": "r"}
    return {"removed": [gone], "errors": [{"target": "x", "error": error}]}


def rows(_: Exchange) -> dict[str, Any]:
    return {"environments": [ROW]}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "control.sock")
    handlers = {"env_add": add, "env_log": log, "env_remove": remove}
    with FakeSupervisor(path, env_list=rows, env_update=rows, **handlers):
        yield path


async def test_arguments_that_there_are_not_are_refused(path: str) -> None:
    """The client takes them as one mapping, which would take any name."""
    misspelt: Any = {"allow_build": True}
    with nsm.Client(socket_path=path) as client:
        with pytest.raises(TypeError, match="'allow_build'"):
            client.builds.add_packages("science", pip=["numpy"], **misspelt)
        with pytest.raises(TypeError, match="'allow_build'"):
            client.exec("work", ["true"], **misspelt)
        with pytest.raises(TypeError, match="'allow_build'"):
            client.run("1", env="python", **misspelt)


async def test_both_clients_do_the_same(path: str) -> None:
    states: list[str] = []
    texts: list[str] = []
    with nsm.Client(socket_path=path) as client:
        builds = client.builds
        blocking = [
            builds.add("r", on_progress=lambda row: states.append(row.state)),
            builds.list_all(),
            builds.update(["science"]),
            builds.log("science", texts.append),
            builds.remove(["science", "x"]),
        ]
    async with nsm.AsyncClient(socket_path=path) as client_:
        other = client_.builds
        on_trio = [
            await other.add("r", on_progress=lambda row: states.append(row.state)),
            await other.list_all(),
            await other.update(["science"]),
            await other.log("science", texts.append),
            await other.remove(["science", "x"]),
        ]
    assert states == ["building"] * 2
    assert texts == ["one\n", "two\n"] * 2
    assert blocking[:4] == on_trio[:4] == [row := read(BuiltRow, ROW), [row], [row], row]
    for report in (blocking[4], on_trio[4]):
        assert isinstance(report, RemoveReport)
        assert report.removed == (("science", "r"),)
        assert isinstance(report.errors[0].error, UnknownEnvironmentError)
    assert row.wanted_by == ("nsm env add",)
