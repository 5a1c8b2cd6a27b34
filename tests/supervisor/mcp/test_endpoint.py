"""Identity of a client: its name, scope, project and roots."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from fake_runner import FakeRunner, a_project, echo
from json_peer import Message, Peer, call_params, text_of
from mcp_peer import attachment, served
from nsm.wire.errors import BadProjectError
from nsmd.mcp.clients import ROOTS_TIMEOUT_S

CODE = {"code": "1", "env": "python"}
ROOTS = {"roots": {"listChanged": True}}


async def submitted(peer: Peer, runner: FakeRunner, *, modern: bool = False) -> Any:
    """The request that a call makes."""
    await peer.call(CODE, modern=modern)
    return (await runner.next()).request


async def answer_roots(peer: Peer, *uris: str) -> None:
    """Expect to be asked for roots, and tell these."""
    question = await peer.receive()
    assert question["method"] == "roots/list", question
    roots = [{"uri": uri} for uri in uris]
    await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": roots}})


@pytest.mark.parametrize(
    ("name", "variables", "project", "client", "scope"),
    [
        ("claude-code", {}, None, "claude-code", "claude-code:-"),
        ("claude-code", {}, "/home/u/p", "claude-code", "claude-code:/home/u/p"),
        ("Visual Studio Code", {}, None, "Visual-Studio-Code", "Visual-Studio-Code:-"),
        ("a/b:c\x1b[31m\n", {}, None, "a-b-c--31m", "a-b-c--31m:-"),
        ("", {}, None, "unknown", "unknown:-"),
        ("x" * 200, {}, None, "x" * 64, "x" * 64 + ":-"),
        ("claude-code", {"NSM_SCOPE": "shared"}, "/p", "claude-code", "shared"),
    ],
)
async def test_a_client_has_a_name_and_a_scope(
    name: str, variables: dict[str, str], project: str | None, client: str, scope: str
) -> None:
    runner = FakeRunner(echo)
    runner.project = a_project(project) if project else None
    async with served(runner, variables=variables, name=name) as peer:
        request = await submitted(peer, runner)
        assert request.client.name == client
        assert request.client.scope == scope
        assert request.client.project == runner.project


async def test_a_modern_client_names_itself_with_each_request() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        request = await submitted(peer, runner, modern=True)
        assert request.client.scope == "modern-client:-"


async def test_a_path_that_is_no_unicode_makes_a_scope_that_is() -> None:
    runner = FakeRunner(echo)
    runner.project = a_project("/home/u/\udcff")
    async with served(runner) as peer:
        request = await submitted(peer, runner)
        assert request.client.scope == "old-client:/home/u/\ufffd"


async def test_variables_and_working_directory_decide_the_project() -> None:
    runner = FakeRunner(echo)
    variables = {"PROJECT_DIR": "/p", "CLAUDE_PROJECT_DIR": "/c", "PROJECT_MOUNT": "/m"}
    async with served(runner, variables=variables, cwd="/cwd", capabilities=ROOTS) as peer:
        await peer.call(CODE)  # roots are not asked for where PROJECT_DIR is set
        assert runner.asked_projects == [(variables, None, "/cwd")]


@pytest.mark.parametrize(
    ("uris", "root"),
    [
        (["file:///home/u/p", "file:///home/u/q"], "/home/u/p"),
        (["file:///home/u/with%20space/%C3%A4"], "/home/u/with space/ä"),
        (["file://localhost/home/u"], "/home/u"),
        (["file://elsewhere/home/u", "file:///home/u/p"], "/home/u/p"),
        ([], None),
    ],
)
async def test_the_first_root_is_the_project(uris: list[str], root: str | None) -> None:
    runner = FakeRunner(echo)
    async with served(runner, capabilities=ROOTS) as peer:
        call = await peer.start("tools/call", call_params(CODE))
        await answer_roots(peer, *uris)
        assert (await peer.receive())["id"] == call
        await peer.call(CODE)  # asked once only
        assert [asked[1] for asked in runner.asked_projects] == [root]


async def test_the_list_of_tools_does_not_wait_for_roots() -> None:
    runner = FakeRunner(echo)
    async with served(runner, capabilities=ROOTS) as peer:
        (tool,) = (await peer.request("tools/list"))["result"]["tools"]  # the very next line
        assert "Project: the client is asked for it with the first call." in tool["description"]
        runner.project = a_project("/p")
        call = await peer.start("tools/call", call_params(CODE))
        await answer_roots(peer, "file:///p")
        assert (await peer.receive())["method"] == "notifications/tools/list_changed"
        assert (await peer.receive())["id"] == call
        (tool,) = (await peer.request("tools/list"))["result"]["tools"]
        assert "/p is at /project" in tool["description"]
        await peer.call(CODE)  # and nothing more is told


async def test_a_project_that_roots_confirm_is_not_told_again() -> None:
    runner = FakeRunner(echo)
    runner.project = a_project("/p")
    async with served(runner, capabilities=ROOTS) as peer:
        (tool,) = (await peer.request("tools/list"))["result"]["tools"]
        assert "/p is at /project" in tool["description"]
        call = await peer.start("tools/call", call_params(CODE))
        await answer_roots(peer, "file:///p")
        assert (await peer.receive())["id"] == call


async def test_a_client_that_may_only_run_code_chooses_nothing_that_it_sees() -> None:
    """Neither a directory, nor programs of environments, nor whose sessions."""
    runner = FakeRunner()
    variables = {"PROJECT_DIR": "/p", "NIX_SANDBOX_DIR": "/d", "NSM_SCOPE": "theirs"}
    async with served(
        runner, confined_to="box", variables=variables, cwd="/cwd", capabilities=ROOTS
    ) as peer:
        call = await peer.start("tools/call", {"name": "run", "arguments": CODE})
        execution = await runner.next()  # and its roots were not asked for
        execution.finish("x")
        assert (await peer.receive())["id"] == call
        assert runner.asked_projects == []
        assert runner.sources == []
        client = execution.request.client
        assert (client.scope, client.project, client.sources) == ("box", None, None)


async def test_parallel_calls_ask_for_roots_once() -> None:
    runner = FakeRunner(echo)
    async with served(runner, capabilities=ROOTS) as peer:
        for _ in range(3):
            await peer.start("tools/call", call_params(CODE))
        await answer_roots(peer, "file:///p")
        for _ in range(3):
            assert "result" in await peer.receive()


async def test_a_modern_client_is_not_asked_for_roots() -> None:
    """Servers of that revision of MCP send no requests to clients."""
    runner = FakeRunner(echo)
    async with served(runner, capabilities=ROOTS) as peer:
        await peer.call(CODE, modern=True)
        assert runner.asked_projects == [({}, None, "/somewhere")]


async def test_a_client_that_does_not_answer_has_no_roots(autojump_clock: MockClock) -> None:
    runner = FakeRunner(echo)
    async with served(runner, capabilities=ROOTS) as peer:
        began = trio.current_time()
        call = await peer.start("tools/call", call_params(CODE))
        question = await peer.receive()
        cancelled = await peer.receive()  # the SDK takes its question back
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == question["id"]
        assert (await peer.receive())["id"] == call
        assert trio.current_time() - began == ROOTS_TIMEOUT_S
        # A late answer changes nothing, and nobody waits again.
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}})
        await peer.call(CODE)
        assert trio.current_time() - began == ROOTS_TIMEOUT_S


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": -32603, "message": "no"}},
        {"result": {"roots": "none"}},
        {"result": {"roots": [{"uri": 7}]}},
        {"result": {"roots": [{"uri": "https://example.com/x"}]}},
        {"result": {}},
    ],
)
async def test_a_wrong_answer_counts_as_no_roots(answer: Message) -> None:
    runner = FakeRunner(echo)
    async with served(runner, capabilities=ROOTS) as peer:
        call = await peer.start("tools/call", call_params(CODE))
        question = await peer.receive()
        await peer.send({"jsonrpc": "2.0", "id": question["id"], **answer})
        assert (await peer.receive())["id"] == call
        assert runner.asked_projects == [({}, None, "/somewhere")]


async def test_changed_roots_are_asked_for_again_and_the_tool_with_them() -> None:
    runner = FakeRunner(echo)
    async with served(runner, capabilities=ROOTS) as peer:
        call = await peer.start("tools/call", call_params(CODE))
        await answer_roots(peer, "file:///old")
        assert (await peer.receive())["id"] == call
        await peer.notify("notifications/roots/list_changed")
        await answer_roots(peer, "file:///new")
        assert (await peer.receive())["method"] == "notifications/tools/list_changed"
        await peer.call(CODE)
        assert [asked[1] for asked in runner.asked_projects] == ["/old", "/new"]


async def test_roots_that_change_while_they_are_told_are_asked_for_again() -> None:
    runner = FakeRunner(echo)
    async with served(runner, capabilities=ROOTS) as peer:
        await peer.start("tools/call", call_params(CODE))
        question = await peer.receive()
        await peer.notify("notifications/roots/list_changed")
        await wait_all_tasks_blocked()
        roots = {"roots": [{"uri": "file:///old"}]}
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": roots})
        received = [await peer.receive() for _ in range(2)]  # the answer and another question
        (question,) = [message for message in received if message.get("method") == "roots/list"]
        roots = {"roots": [{"uri": "file:///new"}]}
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": roots})
        assert (await peer.receive())["method"] == "notifications/tools/list_changed"
        await peer.call(CODE)
        assert [asked[1] for asked in runner.asked_projects] == ["/old", "/new"]


async def test_ids_of_our_questions_are_our_own() -> None:
    """A late answer to a question of an earlier supervisor must not pass for one to ours."""
    ids: set[str] = set()
    for _ in range(2):
        async with served(FakeRunner(echo), capabilities=ROOTS) as peer:
            await peer.start("tools/call", call_params(CODE))
            question = await peer.receive()
            assert isinstance(question["id"], str)
            ids.add(question["id"])
    assert len(ids) == 2


async def test_a_project_is_looked_for_again_after_a_call_that_it_failed() -> None:
    runner = FakeRunner(echo)
    runner.project = a_project("/old")
    async with served(runner) as peer:
        for _ in range(2):
            await peer.call(CODE)
        assert len(runner.asked_projects) == 1
        runner.project = a_project("/new")
        runner.refusal = BadProjectError("/old is gone.")
        assert "/old is gone." in text_of(await peer.call(CODE))
        runner.refusal = None
        await peer.call(CODE)
        assert len(runner.asked_projects) == 2
        runner.project = a_project("/newer")
        (tool,) = (await peer.request("tools/list"))["result"]["tools"]
        assert "/newer is at /project" in tool["description"]
        for path in ("/old", "/old", "/new"):
            assert (await runner.next()).request.client.project == a_project(path)
