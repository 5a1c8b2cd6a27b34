"""Clients are told when what they were told of environments is not true any more."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from fake_runner import ENVIRONMENTS, FakeRunner, echo
from json_peer import MODERN_META, Message, Peer, text_of
from mcp_peer import attachment, served
from nsm.wire.errors import UnknownEnvironmentError
from nsmd.mcp.clients import MAX_SESSIONS, MAX_STREAMS, TELLING_TIMEOUT_S, ListedTools
from nsmd.model.values import Artifact, ClientIdentity, Environment, Sources

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsmd.mcp.clients import Context, View
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


async def test_a_client_is_not_told_of_what_it_has_not_listed_or_what_is_the_same() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        assert "science" not in await description(peer, modern=True)  # it opened no stream
        runner.change([SCIENCE])
        await wait_all_tasks_blocked()
        assert "science" in await description(peer, modern=True)
        await peer.initialize()
        runner.change(ENVIRONMENTS)
        await silent(peer)
        await description(peer)
        runner.change(list(ENVIRONMENTS))
        await silent(peer)


async def test_a_replaced_artifact_is_a_change_even_if_it_is_described_alike() -> None:
    old, new = (
        dataclasses.replace(SCIENCE, artifact=Artifact(run="/s/run", stamp=stamp))
        for stamp in ("1", "2")
    )
    runner = FakeRunner(echo)
    runner.listed = [old]
    async with served(runner) as peer:
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


async def test_streams_are_bounded() -> None:
    async with attachment(FakeRunner(echo)) as peer:
        await peer.attach()
        for _ in range(MAX_STREAMS):
            await listen(peer)
        params: Message = {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META}
        answer = await peer.request("subscriptions/listen", params)
        assert "limit" in answer["error"]["message"]


async def test_sources_that_the_clients_entry_names_are_its_own() -> None:
    runner = FakeRunner(echo)
    variables = {"NIX_SANDBOX_DIR": "/d", "NIX_SANDBOX_ENVS": " a#b, ,c#d,a#b"}
    own = Sources(directory="/d", flakes=("a#b", "c#d"))
    async with served(runner, variables=variables) as peer:
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
    async with served(runner) as peer:
        result = await peer.call({"code": "x", "env": "science"}, modern=modern)
        assert (text_of(result), runner.looks) == ("x", 1)


async def test_an_unknown_environment_is_looked_for_in_later_calls_too() -> None:
    unknown = UnknownEnvironmentError("No environment 'science'.", hint="Available: python.")
    runner = FakeRunner(echo)
    async with served(runner) as peer:
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
    async with served(runner) as peer:
        assert "- science: (no sessions) Python with pandas" in await description(peer)


# Several clients behind one endpoint: each learns that what it has listed is not true any more.


NOTHING: View = ((), False)
PROGRAMS: View = ((), True)


class Session:
    """A client's, as the SDK has it; whoever does not read keeps who tells it waiting."""

    def __init__(self, name: str, *, reads: bool = True) -> None:
        self.name = name
        self.told = 0
        self._reads = reads

    async def send_tool_list_changed(self) -> None:
        if not self._reads:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        self.told += 1

    def context(self) -> Context:
        """Context of a request over HTTP."""
        request = SimpleNamespace(headers={"mcp-session-id": self.name})
        made = SimpleNamespace(request=request, session=self, protocol_version="2025-11-25")
        return cast("Context", cast("Any", made))


class Place:
    """Sessions that exist, and clients that want to know when they change."""

    def __init__(self) -> None:
        self.view = NOTHING
        self.changed: Callable[[], None] = lambda: None
        self.listed = ListedTools(lambda _: self.view)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.changed = changed
        return lambda: None

    def lists(self, session: Session) -> None:
        self.listed.remember(
            session.context(), ClientIdentity(name=session.name, scope="http"), self.view
        )

    def change(self, view: View) -> None:
        self.view = view
        self.changed()


async def announcing(nursery: trio.Nursery, place: Place) -> None:
    nursery.start_soon(place.listed.announce, (place.subscribe,), None)
    await wait_all_tasks_blocked()


async def test_all_clients_over_http_that_have_listed_are_told(autojump_clock: MockClock) -> None:
    place, one, two, never = Place(), Session("one"), Session("two"), Session("never")
    async with trio.open_nursery() as nursery:
        await announcing(nursery, place)
        place.lists(one)
        place.lists(two)
        place.change(PROGRAMS)
        await wait_all_tasks_blocked()
        assert (one.told, two.told, never.told) == (1, 1, 0)
        place.change(PROGRAMS)
        await wait_all_tasks_blocked()
        assert (one.told, two.told) == (1, 1)
        place.change(NOTHING)
        await wait_all_tasks_blocked()
        assert (one.told, two.told) == (2, 2)
        nursery.cancel_scope.cancel()


async def test_a_client_that_lists_meanwhile_does_not_keep_the_news_from_others(
    autojump_clock: MockClock,
) -> None:
    place, before, after = Place(), Session("before"), Session("after")
    async with trio.open_nursery() as nursery:
        await announcing(nursery, place)
        place.lists(before)
        place.change(PROGRAMS)
        place.lists(after)  # sees what is new before anybody has been told
        await wait_all_tasks_blocked()
        assert before.told == 1
        nursery.cancel_scope.cancel()


async def test_a_client_that_does_not_read_delays_the_others_once_and_briefly(
    autojump_clock: MockClock,
) -> None:
    place, deaf, other = Place(), Session("deaf", reads=False), Session("other")
    async with trio.open_nursery() as nursery:
        await announcing(nursery, place)
        place.lists(deaf)
        place.lists(other)
        began = trio.current_time()
        place.change(PROGRAMS)
        await trio.sleep(TELLING_TIMEOUT_S + 0.1)
        assert other.told == 1
        place.change(NOTHING)
        await wait_all_tasks_blocked()
        assert other.told == 2
        assert trio.current_time() - began < TELLING_TIMEOUT_S + 0.2
        nursery.cancel_scope.cancel()


async def test_of_too_many_clients_the_latest_are_told(autojump_clock: MockClock) -> None:
    place = Place()
    sessions = [Session(str(number)) for number in range(MAX_SESSIONS + 2)]
    async with trio.open_nursery() as nursery:
        await announcing(nursery, place)
        for session in sessions:
            place.lists(session)
        place.lists(sessions[2])
        place.change(PROGRAMS)
        await wait_all_tasks_blocked()
        assert [session.told for session in sessions] == [0, 0] + [1] * MAX_SESSIONS
        nursery.cancel_scope.cancel()
