"""Clients are told when what they were told of environments is not true any more."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from trio.testing import wait_all_tasks_blocked

from fake_runner import ENVIRONMENTS, FakeRunner, echo
from json_peer import MODERN_META, Message, Peer, text_of
from mcp_peer import attachment
from nsm.wire.errors import UnknownEnvironmentError
from nsmd.mcp.clients import MAX_STREAMS
from nsmd.model.values import Artifact, Environment, Sources

if TYPE_CHECKING:
    from nsmd.model.values import RunRequest

SCIENCE = Environment(name="science", interpreter="python", description="Python with pandas")
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


async def description(peer: Peer, *, modern: bool = False) -> str:
    answer = await peer.request("tools/list", {"_meta": MODERN_META} if modern else {})
    (tool,) = answer["result"]["tools"]
    assert isinstance(tool["description"], str)
    return tool["description"]


async def silent(peer: Peer) -> None:
    """Nothing is on its way to the client."""
    await wait_all_tasks_blocked()
    assert (await peer.request("ping"))["result"] == {}


async def test_a_client_that_has_listed_is_told_once_and_then_lists_the_new() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        capabilities = (await peer.initialize())["capabilities"]
        assert capabilities["tools"] == {"listChanged": True}
        assert "science" not in await description(peer)
        runner.change([*ENVIRONMENTS, SCIENCE])
        runner.change([*ENVIRONMENTS, dataclasses.replace(SCIENCE, timeout_s=1.0)])
        assert await peer.receive() == CHANGED
        await silent(peer)
        assert "- science: Python with pandas" in await description(peer)
        runner.change(ENVIRONMENTS)
        assert await peer.receive() == CHANGED


async def test_one_whose_view_is_the_same_is_not() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        await description(peer)
        runner.change(list(ENVIRONMENTS))
        await silent(peer)


async def test_nor_one_that_has_not_listed() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        runner.change([SCIENCE])
        await silent(peer)
        assert "science" in await description(peer)


async def test_a_replaced_artifact_is_a_change_even_if_it_is_described_alike() -> None:
    old, new = (
        dataclasses.replace(SCIENCE, artifact=Artifact(run="/s/run", stamp=stamp))
        for stamp in ("1", "2")
    )
    runner = FakeRunner(echo)
    runner.listed = [old]
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        await description(peer)
        runner.change([new])
        assert await peer.receive() == CHANGED


async def listen(peer: Peer) -> int:
    """Open a stream of changes, as the handshake-free revision has it."""
    params: Message = {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META}
    stream = await peer.start("subscriptions/listen", params)
    acknowledged = await peer.receive()
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["_meta"] == {SUBSCRIPTION: stream}
    return stream


async def test_a_modern_client_is_told_on_the_stream_that_it_opened() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        found = (await peer.request("server/discover", {"_meta": MODERN_META}))["result"]
        assert found["capabilities"]["tools"] == {"listChanged": True}
        stream = await listen(peer)
        await description(peer, modern=True)
        runner.change([SCIENCE])
        told = await peer.receive()
        assert told["method"] == CHANGED["method"]
        assert told["params"]["_meta"] == {SUBSCRIPTION: stream}
        assert "science" in await description(peer, modern=True)
        await peer.notify("notifications/cancelled", {"requestId": stream})
        await wait_all_tasks_blocked()
        runner.change(ENVIRONMENTS)
        assert "science" not in await description(peer, modern=True)


async def test_a_stream_keeps_the_id_that_its_client_gave_it() -> None:
    """The SDK takes a text for the number that it reads like."""
    params = {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META}
    async with attachment(FakeRunner(echo)) as peer:
        await peer.attach()
        await peer.request("server/discover", {"_meta": MODERN_META})
        for known in (70, "70"):
            message = {"jsonrpc": "2.0", "id": known, "method": "subscriptions/listen"}
            await peer.send({**message, "params": params})
            acknowledged = await peer.receive()
            assert acknowledged["params"]["_meta"] == {SUBSCRIPTION: known}


async def test_a_modern_client_that_opened_none_is_told_nothing() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        await description(peer, modern=True)
        runner.change([SCIENCE])
        await wait_all_tasks_blocked()
        assert "science" in await description(peer, modern=True)


async def test_streams_are_bounded() -> None:
    async with attachment(FakeRunner(echo)) as peer:
        await peer.attach()
        for _ in range(MAX_STREAMS):
            await listen(peer)
        params: Message = {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META}
        answer = await peer.request("subscriptions/listen", params)
        assert "limit" in answer["error"]["message"]


async def test_what_the_entry_names_is_the_clients_own() -> None:
    runner = FakeRunner(echo)
    variables = {"NIX_SANDBOX_DIR": "/d", "NIX_SANDBOX_ENVS": " a#b, ,c#d,a#b"}
    own = Sources(directory="/d", flakes=("a#b", "c#d"))
    async with attachment(runner) as peer:
        await peer.attach(variables)
        await peer.initialize()
        assert runner.sources == [own]
        await description(peer)
        assert [client.sources for client in runner.asked_environments] == [own]
        await peer.call({"code": "1", "env": "python"})
        assert (await runner.next()).request.client.sources == own
    assert runner.sources == []


class Looked(FakeRunner):
    """Knows an environment only after it has looked for it."""

    def submit(self, request: RunRequest, on_output: object) -> object:  # type: ignore[override]
        if not self.looks:
            raise UnknownEnvironmentError("No environment 'science'.", hint="Available: python.")
        return super().submit(request, None)


@pytest.mark.parametrize("modern", [False, True])
async def test_an_unknown_environment_is_looked_for_before_the_call_is_refused(
    modern: bool,
) -> None:
    runner = Looked(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        result = await peer.call({"code": "x", "env": "science"}, modern=modern)
        assert (text_of(result), runner.looks) == ("x", 1)


async def test_a_call_that_would_be_answered_at_once_too() -> None:
    unknown = UnknownEnvironmentError("No environment 'science'.", hint="Available: python.")
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        for _ in range(2):
            await peer.call({"code": "1", "env": "python"})
        runner.refusal = unknown
        result = await peer.call({"code": "1", "env": "science"})
        assert result["isError"]
        assert "Available: python" in text_of(result)
        assert runner.looks == 1


async def test_the_description_says_where_there_are_no_sessions() -> None:
    runner = FakeRunner(echo)
    runner.listed = [dataclasses.replace(SCIENCE, artifact=Artifact(run="/s/run"))]
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        assert "- science: (no sessions) Python with pandas" in await description(peer)
