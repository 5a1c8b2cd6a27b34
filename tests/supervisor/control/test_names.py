"""Names that the command line gives: each project has its own, as each of an editor's has."""

from __future__ import annotations

from pathlib import Path

import pytest

from control_bench import Bench, Peer, bench
from nsm.wire.errors import (
    AmbiguousSessionError,
    BadRequestError,
    FateUnknownError,
    UnknownSessionError,
)
from nsm.wire.messages import Hello
from virtual_time import virtual_time

pytestmark = virtual_time


async def _client(it: Bench, project: Path | None = None, scope: str = "cli") -> Peer:
    """A client of the command line in a directory."""
    peer = Peer(it.raw())
    shown = "" if project is None else str(project)
    await peer.send(Hello(name="nsm", program_version="0", scope=scope, project=shown))
    await peer.next()
    return peer


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop"
    path.mkdir()
    return path


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words"
    path.mkdir()
    return path


async def _run(peer: Peer, session: str, where: Path | None, **more: object) -> dict[str, object]:
    if where is not None:
        more = {"project": {"path": str(where)}} | more
    answer = await peer.call("run", env="python", code="1", session=session, **more)
    return dict(answer["session"])


async def test_a_name_means_another_session_in_another_project(shop: Path, words: Path) -> None:
    async with bench() as it:
        peer = await _client(it, shop)
        first = await _run(peer, "work", shop)
        second = await _run(peer, "work", words)
        third = await _run(peer, "work", None)
        assert len({each["id"] for each in (first, second, third)}) == 3
        again = await _run(peer, "work", shop)
        assert (again["id"], again["created"]) == (first["id"], False)
        scopes = {row["scope"] for row in (await peer.call("sessions"))["sessions"]}
        assert scopes == {f"cli:{shop}", f"cli:{words}", "cli:-"}


async def test_another_projects_session_is_named_by_id_or_scope(shop: Path, words: Path) -> None:
    async with bench() as it:
        there, here = await _client(it, shop), await _client(it, words)
        id_ = str((await _run(there, "work", shop))["id"])
        for target in (id_, id_[:4], f"cli:{shop}/work"):
            assert (await _run(here, target, words))["id"] == id_
        assert it.run_service.find(id_).spec.project is not None
        with pytest.raises(UnknownSessionError):
            await _run(here, f"cli:{words}/work", words)
        mine = await _run(here, "work", words)
        assert mine["id"] != id_


async def test_an_error_names_the_wanted_and_the_real_value(shop: Path, words: Path) -> None:
    async with bench() as it:
        peer = await _client(it, words)
        id_ = str((await _run(peer, "work", shop))["id"])
        with pytest.raises(BadRequestError, match=f"it sees {shop} at /project, not {words} at"):
            await _run(peer, id_, None, project={"path": str(words), "chosen": True})
        with pytest.raises(BadRequestError, match=f"it sees {shop} at /project, not no project"):
            await _run(peer, id_, None, no_project=True)
        with pytest.raises(BadRequestError, match="mode is readonly, not overlay"):
            await _run(peer, "work", None, project={"path": str(shop), "mode": "overlay"})
        with pytest.raises(BadRequestError, match="its network is off, not full"):
            await _run(peer, "work", shop, network={"mode": "full"})
        await _run(peer, id_, None, project={"path": str(shop), "chosen": True})


async def test_commands_prefer_this_projects_session(shop: Path, words: Path) -> None:
    async with bench() as it:
        there, here = await _client(it, shop), await _client(it, words)
        theirs = await _run(there, "work", shop)
        found = await here.call("find", target="work")
        assert found == {
            "id": theirs["id"],
            "name": "work",
            "scope": f"cli:{shop}",
            "project": str(shop),
            "elsewhere": True,
        }
        assert not (await here.call("find", target=theirs["id"]))["elsewhere"]
        assert not (await here.call("find", target=f"cli:{shop}/work"))["elsewhere"]
        assert not (await there.call("find", target="work"))["elsewhere"]
        ours = await _run(here, "work", words)
        found = await here.call("find", target="work")
        assert (found["id"], found["elsewhere"]) == (ours["id"], False)
        await here.call("kill", targets=["work"])
        assert it.run_service.find("work").id == theirs["id"]


async def test_logs_prefer_this_projects_session_also_when_it_has_ended(
    shop: Path, words: Path
) -> None:
    async with bench() as it:
        there, here = await _client(it, shop), await _client(it, words)
        ours = await _run(here, "work", words)
        await here.call("kill", targets=["work"])
        theirs = await _run(there, "work", shop)
        assert (await here.call("logs", target="work"))["id"] == ours["id"]
        assert (await here.call("logs", target=str(theirs["id"])[:6]))["id"] == theirs["id"]
        await _run(await _client(it), "work", None)  # now the name alone means several
        assert (await here.call("logs", target="work"))["id"] == ours["id"]
        again = await _run(here, "work", words)
        assert (await here.call("logs", target="work"))["id"] == again["id"]


async def test_an_editors_session_of_this_project_is_no_other_projects(
    shop: Path, words: Path
) -> None:
    async with bench() as it:
        editor = await _client(it, shop, scope="editor")
        theirs = await _run(editor, "analysis", shop)
        await _run(await _client(it, words, scope="another"), "analysis", words)
        here = await _client(it, shop)
        found = await here.call("find", target="analysis")
        assert (found["id"], found["elsewhere"]) == (theirs["id"], False)
        with pytest.raises(AmbiguousSessionError):
            await (await _client(it)).call("find", target="analysis")


async def test_code_is_not_run_twice_when_it_is_sent_again(shop: Path, words: Path) -> None:
    async with bench() as it:
        here = await _client(it, words)
        id_ = str((await _run(here, "work", shop))["id"])
        await _run(here, id_, words, execution_id="one")
        executions = it.run_service.find(id_).transcript.executions
        await _run(here, id_, words, execution_id="one", again=True)
        assert it.run_service.find(id_).transcript.executions == executions
        await here.call("kill", targets=[id_])
        # Nothing tells whether an id means a session that is gone, or is a new name.
        with pytest.raises(FateUnknownError):
            await _run(here, id_, words, execution_id="two", again=True)
