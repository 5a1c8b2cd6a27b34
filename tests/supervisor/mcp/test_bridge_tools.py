"""Programs of the bridge as clients of the endpoint see them."""

from __future__ import annotations

import json

import pytest

from fake_programs import FakeProgramCall, FakePrograms, a_program
from fake_runner import FakeRunner, a_project, echo
from json_peer import MODERN_META, Message, Peer, text_of
from mcp_peer import attachment, served
from nsm.wire.errors import BadProgramError, BadProjectError
from nsmd.bridge.programs import ProgramEnd
from nsmd.model.limits import ClientLimits

ERAS = pytest.mark.parametrize("modern", [False, True])
ATTACHMENT = "0123456789abcdef"


def params(tool: str, arguments: object, *, modern: bool = False, token: object = None) -> Message:
    made: Message = {"name": tool, "arguments": arguments}
    meta = dict(MODERN_META) if modern else {}
    if token is not None:
        meta["progressToken"] = token
    if meta:
        made["_meta"] = meta
    return made


async def call(peer: Peer, tool: str, arguments: object, *, modern: bool = False) -> Message:
    answer = await peer.request("tools/call", params(tool, arguments, modern=modern))
    result = answer["result"]
    assert isinstance(result, dict)
    return result  # pyright: ignore[reportUnknownVariableType]


async def listing(peer: Peer, *, modern: bool = False) -> Message:
    answer = await peer.request("tools/list", {"_meta": MODERN_META} if modern else {})
    result = answer["result"]
    assert isinstance(result, dict)
    return result  # pyright: ignore[reportUnknownVariableType]


async def names(peer: Peer, *, modern: bool = False) -> list[str]:
    return [tool["name"] for tool in (await listing(peer, modern=modern))["tools"]]


def succeed(started: FakeProgramCall) -> None:
    started.answer(ProgramEnd(exit_code=0, stdout="deployed\n", duration_s=0.25))


async def everything_said(programs: FakePrograms | None, variables: dict[str, str]) -> list[bytes]:
    """Collect everything that a client receives about the bridge's tools and calls, as it comes."""
    runner, lines = FakeRunner(echo), list[bytes]()
    async with attachment(runner, programs=programs) as peer:
        await peer.attach(variables)
        lines.append(json.dumps(await peer.initialize()).encode())
        requests: list[tuple[str, Message]] = [
            ("tools/list", {}),
            ("tools/list", {"_meta": MODERN_META}),
            ("server/discover", {"_meta": MODERN_META}),
            *(("tools/call", params(t, {})) for t in ("list_programs", "help", "execute", "other")),
        ]
        for method, asked in requests:
            await peer.start(method, asked)
            lines.append(json.dumps(await peer.receive()).encode())
    return lines


@pytest.mark.parametrize(
    ("programs", "entry"),
    [
        (FakePrograms(), {}),
        (FakePrograms("deploy"), {"NSM_BRIDGE": "off"}),
        (FakePrograms("deploy"), {"NSM_BRIDGE": ""}),
        (FakePrograms("deploy"), {"NSM_BRIDGE": "other"}),
    ],
)
async def test_a_client_without_programs_is_told_nothing_of_the_bridge(
    programs: FakePrograms, entry: dict[str, str]
) -> None:
    said = await everything_said(programs, entry)
    assert said == await everything_said(None, {})
    assert b"The only one is 'run'" in said[-1]
    assert not any(b"execute" in line for line in said[:4])


async def test_calls_of_clients_without_the_tools_are_written_down() -> None:
    programs = FakePrograms("deploy")
    async with served(FakeRunner(), programs=programs, variables={"NSM_BRIDGE": "off"}) as peer:
        for tool in ("help", "other", "execute"):
            arguments = {"program": "deploy", "args": ["eu"]}
            answer = await peer.request("tools/call", params(tool, arguments))
            assert "The only one is 'run'" in answer["error"]["message"]
        asked = (await programs.next()).asked
        assert (asked.name, asked.arguments) == ("deploy", ["eu"])
        assert asked.caller.granted == frozenset()
        assert asked.refusal is not None
        assert asked.refusal.message == answer["error"]["message"]


async def test_the_tools_answer_when_the_last_program_has_just_gone() -> None:
    programs = FakePrograms("deploy")
    async with served(FakeRunner(), programs=programs) as peer:
        assert await names(peer) == ["run", "list_programs", "help", "execute"]
        programs.listed = []  # its definition is being edited
        result = await call(peer, "help", {"program": "deploy"})
        assert text_of(result) == "Program 'deploy' not found. Available: none"
        assert text_of(await call(peer, "list_programs", {})) == "No programs are available."
        await peer.start("tools/call", params("execute", {"program": "deploy"}))
        assert (await programs.next()).asked.refusal is None
        assert await names(peer) == ["run"]
        answer = await peer.request("tools/call", params("help", {"program": "deploy"}))
        assert "There is no tool 'help'" in answer["error"]["message"]


async def test_a_client_entry_narrows_and_cannot_widen() -> None:
    programs = FakePrograms("deploy", "restart-db", "wipe", auto=succeed)
    client_limits = ClientLimits(
        scope="box", programs=("deploy", "wipe"), writable=("/home/u/work",)
    )
    async with served(
        FakeRunner(),
        programs=programs,
        client_limits=client_limits,
        variables={"NSM_BRIDGE": "deploy, restart-db"},
    ) as peer:
        assert text_of(await call(peer, "list_programs", {})) == "- deploy: Does deploy."
        result = await call(peer, "help", {"program": "wipe"})
        assert text_of(result) == "Program 'wipe' not found. Available: deploy"
        await call(peer, "execute", {"program": "deploy"})
        caller = (await programs.next()).asked.caller
        assert caller.granted == frozenset({"deploy"})
        assert caller.writable == ("/home/u/work",)
        assert caller.scope == "box"


async def test_a_box_without_programs_has_none() -> None:
    async with served(
        FakeRunner(),
        programs=FakePrograms("deploy"),
        confined_to="box",
        variables={"NSM_BRIDGE": "deploy"},
    ) as peer:
        assert await names(peer) == ["run"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ProgramEnd(exit_code=1, stderr="no host\n"), "Command failed (exit 1): no host"),
        (
            ProgramEnd(exit_code=None, signal=15, why_stopped="timeout", stdout="step 1\n"),
            "Timed out after 300 s\n[stdout]\nstep 1",
        ),
        (BadProgramError("It is not there.", hint="Build it."), "It is not there.\nBuild it."),
    ],
)
async def test_failures_are_results(answer: ProgramEnd | BadProgramError, text: str) -> None:
    programs = FakePrograms("deploy")
    async with served(FakeRunner(), programs=programs) as peer:
        await peer.start("tools/call", params("execute", {"program": "deploy"}))
        (await programs.next()).answer(answer)
        result = (await peer.receive())["result"]
        assert (result["isError"], text_of(result)) == (True, text)


async def test_calls_with_wrong_arguments_are_written_down() -> None:
    programs = FakePrograms("deploy")
    async with served(FakeRunner(), programs=programs) as peer:
        result = await call(peer, "execute", {"program": "deploy", "argv": ["x"]})
        assert "no argument 'argv'" in text_of(result)
        asked = (await programs.next()).asked
        assert (asked.name, asked.refusal is None) == ("deploy", False)
        result = await call(peer, "execute", ["deploy"])
        assert "must be an object" in text_of(result)
        assert (await programs.next()).asked.name is None


async def test_names_and_arguments_reach_the_bridge_as_they_came() -> None:
    """The bridge says what is wrong with it, and writes it down."""
    programs = FakePrograms("deploy", auto=succeed)
    async with served(FakeRunner(), programs=programs) as peer:
        for arguments in (None, {}, {"program": 7, "args": "x"}, {"program": "a", "args": [None]}):
            await call(peer, "execute", arguments)
            asked = (await programs.next()).asked
            given = arguments or {}
            assert (asked.name, asked.arguments) == (given.get("program"), given.get("args"))
            assert asked.refusal is None


@ERAS
@pytest.mark.parametrize("token", [None, 1])
async def test_a_call_taken_back_is_stopped_at_once(modern: bool, token: object) -> None:
    programs = FakePrograms("deploy")
    async with attachment(FakeRunner(), programs=programs) as peer:
        await peer.attach()
        if not modern:
            await peer.initialize()
        sent = await peer.start(
            "tools/call", params("execute", {"program": "deploy"}, modern=modern, token=token)
        )
        started = await programs.next()
        await peer.notify("notifications/cancelled", {"requestId": sent, "reason": "Esc"})
        await started.interrupted.wait()
        assert not started.abandoned.is_set()


@ERAS
async def test_a_client_that_goes_may_come_back(modern: bool) -> None:
    programs = FakePrograms("deploy")
    async with attachment(FakeRunner(), programs=programs) as peer:
        await peer.attach()
        if not modern:
            await peer.initialize()
        await peer.start("tools/call", params("execute", {"program": "deploy"}, modern=modern))
        started = await programs.next()
    await started.abandoned.wait()
    assert not started.interrupted.is_set()


async def test_a_call_that_a_shim_sends_again_has_the_id_that_it_had() -> None:
    programs = FakePrograms("deploy", auto=succeed)
    ids = list[object]()
    for mark in (b"5 ", b"5+2.250 "):
        async with attachment(FakeRunner(), programs=programs) as peer:
            await peer.attach(id=ATTACHMENT)
            await peer.initialize()
            request = {
                "jsonrpc": "2.0",
                "id": "x",
                "method": "tools/call",
                "params": params("execute", {"program": "deploy"}),
            }
            await peer.send_raw(mark + json.dumps(request).encode())
            assert (await peer.receive())["id"] == "x"
            asked = (await programs.next()).asked
            ids.append((asked.call_id, asked.again))
    assert ids == [(f"{ATTACHMENT}-5", False), (f"{ATTACHMENT}-5", True)]


async def test_results_are_bounded_and_each_stream_has_its_share() -> None:
    programs = FakePrograms("deploy")
    programs.listed = [a_program("deploy", documentation="d" * 100_000)]
    async with served(FakeRunner(), programs=programs) as peer:
        sent = await peer.start("tools/call", params("execute", {"program": "deploy"}))
        half = "o" * 30_000
        flood = ProgramEnd(
            exit_code=0,
            stdout=f"{half}\n[... 7 bytes left out ...]\n{half}",
            stderr="e" * 60_000,
            stdout_omitted=7,
        )
        (await programs.next()).answer(flood)
        answer = await peer.receive()
        assert answer["id"] == sent
        text = text_of(answer["result"])
        assert len(text) < 41_000
        assert text.count("o") >= 20_000
        assert text.count("e") >= 20_000
        extras = answer["result"]["_meta"]["nsm"]
        assert extras["omitted_chars"] == 80_000
        assert extras["omitted_bytes"] == {"stdout": 7, "stderr": 0}
        assert "\n[... 40,007 bytes left out ...]\n" in text
        assert "\n[... 40,000 characters left out ...]\n" in text
        assert len(text_of(await call(peer, "help", {"program": "deploy"}))) < 41_000


async def test_a_program_needs_no_project() -> None:
    runner, programs = FakeRunner(), FakePrograms("deploy", auto=succeed)
    runner.project = BadProjectError("It is gone.")
    async with served(runner, programs=programs) as peer:
        await call(peer, "execute", {"program": "deploy"})
        assert (await programs.next()).asked.caller.scope == "old-client:-"
        runner.project = a_project("/home/u/p")
        await call(peer, "execute", {"program": "deploy"})
        assert (await programs.next()).asked.caller.scope == "old-client:/home/u/p"
