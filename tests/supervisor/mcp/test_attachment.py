"""One attachment over memory streams: eras, bad input, cancellation, clients that go away."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import trio
from mcp_types import INVALID_PARAMS
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from fake_runner import FakeRunner, a_project, echo
from json_peer import Peer, call_params, text_of
from mcp_peer import attachment, serve_stream, served
from nsm.wire.errors import BadProjectError, BadRequestError, InternalError
from nsmd.mcp.attachment import MAX_ATTACH_BYTES, EndpointLoader, parse_attach
from nsmd.mcp.endpoint import serve
from nsmd.mcp.messages import MAX_VALUES
from nsmd.model.values import Sources

CODE = {"code": "print(1)", "env": "python"}


# Eras.


@pytest.mark.parametrize("asked", ["2024-11-05", "2025-03-26", "2025-06-18", "2099-01-01"])
async def test_older_revisions_are_spoken_and_unknown_ones_get_the_latest(asked: str) -> None:
    """`tests/mcpconformance` speaks the newest two."""
    async with attachment(FakeRunner(echo)) as peer:
        await peer.attach()
        answered = (await peer.initialize(asked))["protocolVersion"]
        assert answered == ("2025-11-25" if asked.startswith("2099") else asked)
        result = await peer.call({"code": "hello", "env": "python"})
        assert (text_of(result), result["isError"]) == ("hello", False)
        assert "structuredContent" not in result


@pytest.mark.parametrize("modern", [True, False])
async def test_a_call_of_too_much_is_refused_and_the_next_is_served(modern: bool) -> None:
    runner = FakeRunner(echo)
    async with served(runner, version="2025-06-18") as peer:
        result = await peer.call({**CODE, "session": [1] * MAX_VALUES}, modern=modern)
        assert result["isError"] is True
        assert f"more than {MAX_VALUES:,} values" in text_of(result)
        code = '["a", {}],' * MAX_VALUES
        await peer.call({**CODE, "code": code}, modern=modern)
        assert (await runner.next()).request.code == code


async def test_sessions_are_expected_from_the_attachment_on() -> None:
    runner = FakeRunner(echo)
    runner.project = a_project("/src/root")
    async with attachment(runner) as peer:
        variables = {"PROJECT_DIR": "/src/guess"}
        await peer.attach(variables=variables, cwd="/src")
        assert runner.came == [(variables, "/src")]  # before it said anything else
        await peer.initialize("2025-06-18")
        assert runner.expected == []
        await peer.request("tools/list")
        assert runner.expected == [a_project("/src/root")]


async def test_nothing_is_expected_of_a_client_whose_project_is_refused() -> None:
    runner = FakeRunner(echo)
    runner.project = BadProjectError("no", hint="another")
    async with attachment(runner) as peer:
        assert (await peer.attach())["ok"] is True
        await peer.initialize("2025-06-18")
        await peer.request("tools/list")
        assert runner.expected == []


async def test_a_batch_is_served_message_by_message() -> None:
    async with served(FakeRunner(echo), version="2025-03-26") as peer:
        calls = [
            {"jsonrpc": "2.0", "id": f"b{n}", "method": "tools/call", "params": call_params(CODE)}
            for n in range(3)
        ]
        await peer.send([*calls, 7])
        answers = [await peer.receive() for _ in range(4)]
        assert {answer["id"] for answer in answers} == {"b0", "b1", "b2", None}


# Bad input.

BAD_LINES: list[tuple[bytes, int]] = [
    (b"garbage", -32700),
    (b"[" * 100_000, -32600),
    (b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}', -32600),
    (b"[]", -32600),
    (b'{"jsonrpc":"2.0","id":3,"method":"tools/nothing"}', -32601),
    (b'{"jsonrpc":"2.0","id":3,"method":"tools/call"}', -32602),
    (b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":7}}', -32602),
    (b'{"jsonrpc":"2.0","id":3,"method":"server/discover"}', -32601),
]

IGNORED_LINES = [
    b"",
    b"   ",
    b'{"jsonrpc":"2.0","method":"notifications/nothing"}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized","params":{"a":1}}',
    b'{"jsonrpc":"2.0","id":77,"result":{}}',
    b'{"jsonrpc":"2.0","id":"nsm-00000000-1","result":{}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}',
    b'{"jsonrpc":"2.0","id":1,"error":{}}',
]


async def test_bad_lines_are_answered_and_the_connection_lives() -> None:
    async with served(FakeRunner(echo)) as peer:
        for line, code in BAD_LINES:
            await peer.send_raw(line)
            answer = await peer.receive()
            assert answer["error"]["code"] == code, (line[:80], answer)
        for line in IGNORED_LINES:
            await peer.send_raw(line)
        assert text_of(await peer.call({"code": "fine", "env": "python"})) == "fine"


async def test_bad_lines_before_the_handshake() -> None:
    async with attachment(FakeRunner(echo)) as peer:
        await peer.attach()
        await peer.send_raw(b"garbage")
        assert (await peer.receive())["error"]["code"] == -32700
        assert (await peer.request("tools/call", call_params(CODE)))["error"]["code"] == -32602
        for line in IGNORED_LINES:
            await peer.send_raw(line)
        await peer.initialize()
        assert text_of(await peer.call(CODE)) == "print(1)"


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([1], "must be an object, not an array"),
        (None, "`code` is missing"),
        ({"code": "1", "env": "python", "timeout": 1}, "Did you mean 'timeout_seconds'"),
    ],
)
async def test_mistakes_in_a_call_are_results_for_the_model(
    arguments: object, says: str, modern: bool
) -> None:
    """`test_arguments.py` has all of them."""
    async with served(FakeRunner(echo)) as peer:
        result = await peer.call(arguments, modern=modern)
        assert result["isError"] is True
        assert says in text_of(result)


async def test_an_unknown_tool_is_an_error_of_the_protocol() -> None:
    async with served(FakeRunner()) as peer:
        for name in ("Bash", "Ba\ud800sh", "x" * 10_000):
            answer = await peer.request("tools/call", {"name": name, "arguments": {"a": "ls"}})
            assert answer["error"]["code"] == INVALID_PARAMS
            text = answer["error"]["message"]
            assert text.startswith(f"There is no tool {name[:80]!r}.")
            assert "'run'" in text


async def test_a_project_that_cannot_be_mounted_is_told_with_each_call() -> None:
    runner = FakeRunner(echo)
    runner.project = BadProjectError("PROJECT_DIR '/x' does not exist.", hint="Correct it.")
    async with served(runner, variables={"PROJECT_DIR": "/x"}) as peer:
        (tool,) = (await peer.request("tools/list"))["result"]["tools"]
        assert "mounted: PROJECT_DIR '/x' does not exist. Correct it.\n" in tool["description"]
        result = await peer.call(CODE)
        assert result["isError"] is True
        assert text_of(result) == "PROJECT_DIR '/x' does not exist.\nCorrect it."


async def test_a_fault_of_nsm_is_an_error_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    runner = FakeRunner(lambda execution: execution.answer(7))  # type: ignore[arg-type]
    async with served(runner) as peer:
        result = await peer.call(CODE)
        assert result["isError"] is True
        assert "nsm failed" in text_of(result)
    assert "a call of run failed" in caplog.text


async def test_output_that_is_no_unicode_leaves_the_line_json() -> None:
    def odd(execution: Any) -> None:
        execution.finish("a\ud800\x00\x1b\u2028b")

    async with served(FakeRunner(odd)) as peer:
        assert text_of(await peer.call(CODE)) == "a\ufffd\x00\x1b\u2028b"


# Variables of the client that the configuration asks for.


async def test_variables_are_asked_for_and_go_with_calls() -> None:
    runner = FakeRunner()
    runner.inherit = ("TOKEN", "UNSET")
    async with attachment(runner) as peer:
        answer = await peer.attach(inherits=True)
        assert answer["inherit"] == ["TOKEN", "UNSET"]
        await peer.send({"nsm": 1, "inherited": {"TOKEN": "hush", "OTHER": "dropped"}})
        await peer.initialize()
        await peer.start("tools/call", call_params(CODE))
        execution = await runner.next()
        assert execution.request.client.inherited == (("TOKEN", "hush"),)
        assert "hush" not in repr(execution.request)
        execution.finish()


async def test_an_older_shim_is_not_asked_for_variables() -> None:
    runner = FakeRunner(echo)
    runner.inherit = ("TOKEN",)
    async with attachment(runner) as peer:
        assert "inherit" not in await peer.attach()
        await peer.initialize()
        assert text_of(await peer.call(CODE)) == "print(1)"


@pytest.mark.parametrize("inherited", [3, None, {"TOKEN": 3}, {"TOKEN": "x" * 100_000}])
async def test_variables_that_cannot_be_used_are_left_out(inherited: object) -> None:
    runner = FakeRunner()
    runner.inherit = ("TOKEN",)
    async with attachment(runner) as peer:
        await peer.attach(inherits=True)
        await peer.send({"nsm": 1, "inherited": inherited})
        await peer.initialize()
        await peer.start("tools/call", call_params(CODE))
        execution = await runner.next()
        assert execution.request.client.inherited == ()
        execution.finish()


# Clients that go away, and ones that do not listen.


async def test_a_client_that_vanishes_abandons_its_calls() -> None:
    runner = FakeRunner()
    async with served(runner) as peer:
        await peer.start("tools/call", call_params(CODE))
        await peer.start("tools/call", call_params(CODE, modern=True))
        executions = [await runner.next(), await runner.next()]
        await peer.stream.aclose()
        for execution in executions:
            await execution.abandoned.wait()
            assert not execution.interrupted.is_set()


async def test_a_supervisor_that_ends_abandons_calls_and_hangs_up() -> None:
    runner = FakeRunner()
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, theirs, runner)
        peer = Peer(ours)
        await peer.attach()
        await peer.initialize()
        await peer.start("tools/call", call_params(CODE))
        execution = await runner.next()
        nursery.cancel_scope.cancel()
        await execution.abandoned.wait()
    with pytest.raises(EOFError):
        await peer.receive()


async def test_a_client_that_never_reads_does_not_delay_others(autojump_clock: MockClock) -> None:
    """The client gets back-pressure, its queue is bounded, and another client is served."""
    runner = FakeRunner(echo)
    ours, theirs = lockstep_stream_pair()
    async with trio.open_nursery() as nursery, served(runner) as other:
        nursery.start_soon(serve_stream, theirs, runner)
        deaf = Peer(ours)
        await deaf.attach()
        with trio.move_on_after(1000) as patience:
            for _ in range(1000):
                await deaf.send_raw(b"garbage, which is answered")
        assert patience.cancelled_caught  # it is not read any more
        assert text_of(await other.call({"code": "served", "env": "python"})) == "served"
        nursery.cancel_scope.cancel()


# Attaching.


async def test_the_first_line_may_come_in_pieces_and_with_the_rest() -> None:
    runner = FakeRunner()
    ours, theirs = memory_stream_pair()
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    async with trio.open_nursery() as nursery:
        begin = partial(serve_stream, theirs, runner, first_bytes=b'{"nsm": 1')
        nursery.start_soon(begin)
        await ours.send_all(b', "attach": {}}')
        await ours.send_all(b"\n" + ping[:10])
        await ours.send_all(ping[10:])
        peer = Peer(ours)
        assert (await peer.receive())["ok"] is True
        assert (await peer.receive())["id"] == 1
        await ours.aclose()


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b'{"nsm": 7}\n', "nsm shutdown"),
        (b"{" + b"x" * MAX_ATTACH_BYTES + b"xx", "262144 bytes"),
        (b"{", "within 10 s"),
    ],
)
async def test_a_client_that_does_not_attach_is_refused(
    autojump_clock: MockClock, sent: bytes, says: str
) -> None:
    async with attachment(FakeRunner()) as peer:
        await peer.stream.send_all(sent)
        answer = await peer.receive()
        assert answer["ok"] is False
        assert says in answer["error"]["message"] + answer["error"]["hint"]
        with pytest.raises(EOFError):
            await peer.receive()


async def test_attachments_wait_for_the_package_and_are_told_when_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    loader = EndpointLoader()
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, theirs, FakeRunner(), loader=loader))
        peer = Peer(ours)
        await peer.send({"nsm": 1, "attach": {}})
        await wait_all_tasks_blocked()
        assert repr(loader) == "<EndpointLoader not loaded>"
        await loader.run()
        assert repr(loader) == "<EndpointLoader failed>"
        answer = await peer.receive()
        assert "cannot load what serves MCP clients" in answer["error"]["message"]
        await ours.aclose()


async def test_endpoint_of_another_version_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = EndpointLoader()
    monkeypatch.setattr("nsmd.mcp.attachment.installed_files", lambda: ("0.9", ""))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loader.run)
        with pytest.raises(InternalError) as refused:
            await loader.serve()
    assert "nsm reload" in refused.value.hint


async def test_package_is_loaded_for_the_first_attachment_and_not_before(
    autojump_clock: MockClock,
) -> None:
    loader = EndpointLoader()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loader.run)
        await trio.sleep(3600)  # of virtual time
        assert repr(loader) == "<EndpointLoader not loaded>"
        assert await loader.serve() is serve
    assert repr(loader) == "<EndpointLoader ready>"


# The first line of an attachment.


def first_line(variables: dict[str, Any] | None = None, **more: Any) -> bytes:
    return json.dumps({"nsm": 1, "attach": {"variables": variables or {}, **more}}).encode()


def test_variables_and_fields_of_the_first_line_are_read() -> None:
    attach = parse_attach(
        first_line(
            {
                "PROJECT_DIR": "/p",
                "NSM_SCOPE": "shared",
                "SESSION_IDLE_TIMEOUT": "60",
                "SESSION_MAX_LIFETIME": "1e3",
                "PROJECT_MODE": "readonly",
                "SECRET_TOKEN": "never",
                "CLAUDE_PROJECT_DIR": "",
            },
            cwd="/here",
            pid=7,
            program_version="0.1.0",
            newer_field=True,
        )
    )
    assert attach.scope == "shared"
    assert (attach.idle_timeout_s, attach.max_lifetime_s) == (60.0, 1000.0)
    assert (attach.cwd, attach.pid, attach.program_version) == ("/here", 7, "0.1.0")
    # A variable that means nothing to nsm is dropped unread; an empty one counts as unset.
    assert "SECRET_TOKEN" not in attach.variables
    assert "CLAUDE_PROJECT_DIR" not in attach.variables


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"{", "must be JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "must be"),
        (b'{"nsm": 2, "attach": {}}', "must be"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "initialize"}', "must be"),
        (b'{"nsm": 1}', "must be an object"),
        (b'{"nsm": 1, "attach": []}', "must be an object"),
        (b'{"nsm": 1, "attach": {"variables": 7}}', "must be an object"),
        (first_line({"PROJECT_DIR": 7}), "PROJECT_DIR must be text"),
        (first_line({"PROJECT_DIR": "a\0b"}), "PROJECT_DIR must be text"),
        (first_line({"PROJECT_MODE": "rw"}), "must be 'readonly' or 'overlay', not 'rw'"),
        (first_line({"SESSION_IDLE_TIMEOUT": "soon"}), "SESSION_IDLE_TIMEOUT .* not 'soon'"),
        (first_line({"SESSION_IDLE_TIMEOUT": "0"}), "above 0"),
        (first_line({"SESSION_MAX_LIFETIME": "nan"}), "above 0"),
        (first_line({"SESSION_MAX_LIFETIME": "inf"}), "above 0"),
        (first_line({"NSM_SCOPE": "a\nb"}), "printable"),
        (first_line({"NSM_SCOPE": "x" * 201}), "at most 200"),
        (first_line({"NSM_BRIDGE": "Deploy"}), "names of programs, separated by commas"),
        (first_line({"NSM_BRIDGE": "off,deploy"}), "names of programs, separated by commas"),
        (first_line({"NSM_BRIDGE": "a b"}), "names of programs, separated by commas"),
        (first_line({"NSM_BRIDGE": "a\0"}), "NUL"),
    ],
)
def test_errors_about_the_first_line_name_what_was_expected(first: bytes, says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        parse_attach(first)


def test_a_wrong_working_directory_is_left_out() -> None:
    assert parse_attach(first_line(cwd=7)).cwd is None
    assert parse_attach(first_line(cwd="a\0b")).cwd is None


def test_metadata_of_the_entry_has_defaults_for_its_sessions() -> None:
    metadata = '{"session": {"idle_timeout_seconds": 60, "max_lifetime_seconds": 70}}'
    attach = parse_attach(
        first_line({"NIX_SANDBOX_METADATA": metadata, "SESSION_MAX_LIFETIME": "5"})
    )
    assert attach.sources == Sources(metadata=metadata)
    assert (attach.idle_timeout_s, attach.max_lifetime_s) == (60.0, 5.0)


@pytest.mark.parametrize("metadata", ["{", "\ud800", "[" * 50_000])
def test_broken_metadata_of_the_entry_does_not_refuse_the_client(metadata: str) -> None:
    attach = parse_attach(first_line({"NIX_SANDBOX_METADATA": metadata}))
    assert attach.sources == Sources(metadata=metadata)
    assert attach.idle_timeout_s is None


@pytest.mark.parametrize(
    ("variables", "programs"),
    [
        (dict[str, str](), None),
        ({"NSM_BRIDGE": ""}, frozenset[str]()),
        ({"NSM_BRIDGE": "off"}, frozenset[str]()),
        ({"NSM_BRIDGE": " deploy_prod, restart-db,"}, frozenset({"deploy_prod", "restart-db"})),
    ],
)
def test_the_entry_names_the_programs_that_it_may_start(
    variables: dict[str, str], programs: frozenset[str] | None
) -> None:
    assert parse_attach(first_line(variables)).programs == programs
