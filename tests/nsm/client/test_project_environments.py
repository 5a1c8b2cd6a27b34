"""`client.project_environments` of both clients, against a fake supervisor and word for word
alike.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

import nsm
from fakesupervisor import Exchange, FakeSupervisor
from nsm.client.environments import AsyncProjectEnvironments, ProjectEnvironments
from nsm.wire.errors import BadProjectError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW: dict[str, Any] = {
    "path": ".venv",
    "kind": "venv",
    "version": "3.12.1",
    "packages": [],
    "package_count": 0,
    "name": "venv",
    "changed": False,
    "problem": None,
}


@pytest.fixture
def asked() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def path(tmp_path: Path, asked: list[dict[str, Any]]) -> Iterator[str]:
    path = str(tmp_path / "control.sock")

    def answer(exchange: Exchange) -> dict[str, Any]:
        asked.append(dict(exchange.args))
        return {"found": ROW, "name": "venv"}

    def rows(exchange: Exchange) -> dict[str, Any]:
        asked.append(dict(exchange.args))
        return {"found": [ROW]}

    with FakeSupervisor(path, env_found=rows, env_use=answer, env_forget=answer):
        yield path


async def test_both_clients_do_the_same(
    path: str, asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"interpreter": "/usr/bin/python3", "wait": False}
    with nsm.Client(socket_path=path, project=tmp_path) as client:
        one = client.project_environments
        blocking = [one.find(), one.use("uv.lock", **options), one.forget("venv")]
    async with nsm.AsyncClient(socket_path=path, project=tmp_path) as client_:
        two = client_.project_environments
        on_trio = [await two.find(), await two.use("uv.lock", **options), await two.forget("venv")]
    assert blocking == on_trio
    assert asked[:3] == asked[3:]
    project = str(tmp_path)
    assert asked[1] == {"project": project, "path": "uv.lock", "interpreter": "/usr/bin/python3"}
    with (
        nsm.Client(socket_path=path, project=None) as client,
        pytest.raises(BadProjectError, match="no project"),
    ):
        client.project_environments.find()


def test_both_have_the_same_methods_and_arguments() -> None:
    for name in ("find", "use", "forget"):
        one, two = getattr(ProjectEnvironments, name), getattr(AsyncProjectEnvironments, name)
        assert inspect.signature(one) == inspect.signature(two), name
