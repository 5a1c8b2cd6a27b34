"""Connections that may only run code: they know and reach nothing beyond their own scope."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio

from control_bench import Bench, Peer, bench
from nsm.wire.errors import (
    BadRequestError,
    ForbiddenError,
    NsmError,
    UnknownExecutionError,
    UnknownSessionError,
)
from nsm.wire.operation import Right
from nsmd.control.operations import OPERATIONS
from nsmd.control.ops import environments
from nsmd.control.server import Access
from nsmd.model.limits import ClientLimits
from virtual_time import virtual_time

pytestmark = virtual_time

RUN: frozenset[Right] = frozenset({"run"})


async def _confined(it: Bench, scope: str = "box") -> Peer:
    return await it.connect(it.make_server(RUN, os.getuid(), scope))


def test_a_listener_for_code_alone_has_a_scope() -> None:
    with pytest.raises(ValueError, match="needs a boundary"):
        Access(uid=1, rights=RUN)
    assert Access(uid=1, rights=RUN, client_limits=ClientLimits(scope="box")).confined
    assert not Access(uid=1).confined


async def test_the_scope_is_the_sockets_not_the_clients() -> None:
    async with bench() as it:
        peer = Peer(it.raw(it.make_server(RUN, os.getuid(), "box")))
        await peer.hello(scope="cli")
        await peer.call("run", env="python", code="1", session="a")
        assert it.run_service.find("box/a").name == "a"
        with pytest.raises(UnknownSessionError):
            it.run_service.find("cli/a")


async def test_only_sessions_of_the_own_scope_are_listed() -> None:
    async with bench() as it:
        person = await it.connect()
        await person.call("run", env="python", code="1", session="secret-plan")
        await person.call("run", env="python", code="1", session="gone")
        await person.call("kill", targets=["gone"])
        peer = await _confined(it)
        await peer.call("run", env="python", code="1", session="mine")
        answer = await peer.call("sessions", all=True)
        assert [row["name"] for row in answer["sessions"]] == ["mine"]
        assert answer["ended"] == []
        told = await person.call("sessions", all=True)
        assert {row["name"] for row in told["sessions"]} == {"secret-plan", "mine"}
        assert [row["name"] for row in told["ended"]] == ["gone"]
        assert set(await peer.call("status")) == {"version"}
        rows = (await peer.call("envs"))["environments"]
        assert {row["name"] for row in rows} == {"bash", "node", "python"}


async def test_suggestions_of_imports_are_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [{"module": "pandas", "seconds": 1.2, "sessions": 3, "of": 4}]

    def facts_of(*_: object) -> dict[str, Any]:
        return {"templates": [], "slow_imports": slow}

    monkeypatch.setattr(environments, "facts_of", facts_of)
    async with bench() as it:
        person, peer = await it.connect(), await _confined(it)
        for one, expected in ((person, slow), (peer, [])):
            await one.call("run", env="python", code="1", session="a")
            rows = (await one.call("envs"))["environments"]
            assert all(row.get("slow_imports", []) == expected for row in rows)


@pytest.mark.parametrize("by", ["id", "name", "scope/name"])
async def test_others_sessions_are_not_there(by: str) -> None:
    async with bench() as it:
        person = await it.connect()
        await person.call("run", env="python", code="1", session="a")
        running = await person.start("run", env="python", code="wait", session="a")
        session = it.run_service.find("here/a")
        target = {"id": session.id, "name": "a", "scope/name": "here/a"}[by]
        peer = await _confined(it)
        with pytest.raises(UnknownSessionError) as refused:
            await peer.call("interrupt", target=target)
        with pytest.raises(UnknownSessionError) as nothing:
            await peer.call("interrupt", target="nothing")
        # No other words than for one that does not exist.
        assert refused.value.message == nothing.value.message.replace("nothing", target)
        other = await it.connect()
        assert (await other.call("interrupt", target=session.id))["interrupted"]
        assert (await person.answer(running))["interrupted"]


async def test_a_name_means_the_session_of_the_own_scope() -> None:
    async with bench() as it:
        person, peer, other = await it.connect(), await _confined(it), await _confined(it)
        await person.start("run", env="python", code="wait", session="a")
        running = await peer.start("run", env="python", code="wait", session="a")
        await trio.testing.wait_all_tasks_blocked()
        assert (await other.call("interrupt", target="a"))["interrupted"]
        assert (await peer.answer(running))["interrupted"]
        assert it.run_service.find("here/a").state.value == "running"


async def test_others_results_are_not_there() -> None:
    async with bench() as it:
        person = await it.connect()
        await person.call("run", env="python", code="1", execution_id="plan")
        peer = await _confined(it)
        with pytest.raises(UnknownExecutionError):
            await peer.call("result", execution_id="plan")
        await peer.call("run", env="python", code="2", execution_id="mine")
        assert (await peer.call("result", execution_id="mine"))["stdout"] == "2"
        assert (await person.call("result", execution_id="mine"))["stdout"] == "2"


async def test_a_confined_client_chooses_no_project() -> None:
    async with bench() as it:
        peer = await _confined(it)
        with pytest.raises(ForbiddenError, match="choose the directory"):
            await peer.call("run", env="python", code="1", project={"path": "/srv"})


@pytest.mark.parametrize("rights", [{"run"}, {"run", "read"}, {"read"}, {"run", "bridge"}])
async def test_each_operation_needs_its_right(rights: set[Right]) -> None:
    async with bench() as it:
        for op, row in OPERATIONS.items():
            scope = "box" if "run" in rights else None
            peer = await it.connect(it.make_server(frozenset(rights), os.getuid(), scope))
            code = ""
            try:
                await peer.call(op)
            except NsmError as error:
                code = error.code
            allowed = row.right in rights or (row.own and "run" in rights)
            assert (code == "forbidden") == (not allowed), op
        assert it.ending.how is None


async def test_a_client_may_ask_for_fewer_rights() -> None:
    async with bench() as it:
        peer = Peer(it.raw())
        hello = await peer.hello("read", "fly")  # type: ignore[arg-type]
        assert hello.rights == ("read",)
        assert (await peer.call("sessions"))["sessions"] == []
        for op in ("run", "kill"):
            with pytest.raises(ForbiddenError):
                await peer.call(op, env="python", code="1")


async def test_a_client_gets_no_more_rights_than_its_socket_has() -> None:
    async with bench() as it:
        peer = Peer(it.raw(it.make_server(RUN, os.getuid(), "box")))
        assert (await peer.hello("run", "manage")).rights == ("run",)
        with pytest.raises(ForbiddenError):
            await peer.call("shutdown")


async def test_an_attachment_is_kept_to_the_scope() -> None:
    async with bench() as it:
        first = b'{"nsm": 1, "attach": {}}\n'
        for server in (it.make_server(RUN, os.getuid(), "box"), it.server):
            end = it.raw(server)
            end.send(first)
            await trio.testing.wait_all_tasks_blocked()
        assert it.attached == [first, first]
        assert it.scopes == [("box", True), (None, False)]
        read_only = it.raw(it.make_server(frozenset({"read"}), os.getuid()))
        read_only.send(first)
        await trio.testing.wait_all_tasks_blocked()
        assert len(it.attached) == 2  # runs no code


async def test_the_right_to_read_does_not_interrupt_others() -> None:
    async with bench() as it:
        person = await it.connect()
        running = await person.start("run", env="python", code="wait", session="a")
        await trio.testing.wait_all_tasks_blocked()
        peer = await it.connect(it.make_server(frozenset({"read", "run"}), os.getuid()))
        assert [row["name"] for row in (await peer.call("sessions"))["sessions"]] == ["a"]
        await peer.call("run", env="python", code="1", session="b")  # in scope `here`, too
        other = Peer(it.raw(it.make_server(frozenset({"read", "run"}), os.getuid(), "box")))
        await other.hello()
        with pytest.raises(UnknownSessionError):
            await other.call("interrupt", target="a")
        assert (await peer.call("interrupt", target="a"))["interrupted"]
        assert (await person.answer(running))["interrupted"]


async def test_a_client_without_the_right_to_programs_gives_none_to_a_box() -> None:
    box: dict[str, Any] = {
        "directory": "/nonexistent",
        "profile": "test",
        "digest": "0" * 64,
        "network": {"mode": "off", "allow": []},
        "shows_project": False,
        "programs": ["deploy"],
    }
    async with bench() as it:
        peer = Peer(it.raw())
        assert (await peer.hello("manage", "run")).rights == ("manage", "run")
        with pytest.raises(ForbiddenError, match="must not start programs"):
            await peer.call("box_open", **box)
        peer = Peer(it.raw())
        await peer.hello("manage", "bridge")
        with pytest.raises(BadRequestError, match="The bridge is off"):
            await peer.call("box_open", **box)
        for wrong in (["../deploy"], ["Deploy"], [""], [f"p{n}" for n in range(65)], "deploy"):
            with pytest.raises(BadRequestError, match="programs"):
                await peer.call("box_open", **{**box, "programs": wrong})
        for paths in (["/text"], [b"relative"], [b"/a\0b"], [b"/x" * 2049], [b"/x"] * 257):
            with pytest.raises(BadRequestError, match="writable"):
                await peer.call("box_open", **{**box, "programs": [], "writable": paths})
