"""A supervisor whose clients send anything, and whose agents lie.

Each example has a supervisor of its own, on a virtual clock. Whatever happens, a client that asks
properly in another session is answered, each call gets one answer, and nothing is logged as a
failure of the supervisor's own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from control_bench import bench
from fakes import FakeAgent, FakeJail, echo
from fuzz.test_codecs import FEW, HELLO, SEEDS, VALUES, damaged
from nsm.wire.errors import NsmError
from nsm.wire.frames import encode_frame
from nsmd.control.operations import OPERATIONS
from sandbox.framing import FrameError

FIELDS = (
    *("id", "type", "stdout", "stderr", "exit_code", "seq", "ack", "text", "stream", "displays"),
    *("truncated", "file", "size", "data", "matches", "running", "background", "restart_reason"),
    *("interpreter_restarted", "capabilities", "protocol", "duration_s", "omitted_bytes"),
)
TYPES = (
    *("ready", "result", "output", "status", "error", "completions", "checked", "file"),
    *("file_data", "file_closed", "file_error", "hello", "execute", "nothing-known"),
)


@st.composite
def frames(draw: st.DrawFn) -> dict[str, Any]:
    """A frame that an agent might send, with whatever in it."""
    fields = draw(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6))
    return {"type": draw(st.sampled_from(TYPES)), **fields}


WORDS = st.sampled_from(
    ["python", "bash", "node", "a", "new", "../x", "", "x" * 300, "\0", "-h", "cli/a"]
)
ARGUMENT_NAMES = (
    *("env", "code", "session", "timeout_s", "execution_id", "target", "targets", "all", "idle_s"),
    *("path", "file", "data", "cursor", "project", "variables", "follow", "executions", "stream"),
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(ARGUMENT_NAMES), VALUES | WORDS | st.lists(WORDS, max_size=3), max_size=5
)
HARMFUL = frozenset({"shutdown", "drain", "reload", "env_add", "env_update"})
"""Not asked: they end the supervisor, or have it take nothing new, as they should; or they start
programs of the host."""


class _Complaints(logging.Handler):
    """Errors that were logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def on_virtual_time(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run it, and see that nothing is logged as a failure of the supervisor's."""
    complaints = _Complaints()
    logging.getLogger("nsmd").addHandler(complaints)
    try:
        trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        logging.getLogger("nsmd").removeHandler(complaints)


@FEW
@given(data=damaged([HELLO, *SEEDS["from-client"]]), whole=st.booleans())
def test_clients_that_send_anything_delay_no_other(data: bytes, whole: bool) -> None:
    async def scenario() -> None:
        async with bench() as it:
            end = it.raw()
            with suppress(OSError):
                end.sendall(HELLO * whole + data[1:])
            peer = await it.connect()
            assert (await peer.call("run", env="python", code="mine"))["stdout"] == "mine"
            end.close()
            await trio.testing.wait_all_tasks_blocked()
            assert (await peer.call("run", env="python", code="mine"))["stdout"] == "mine"

    on_virtual_time(scenario)


@FEW
@given(
    requests=st.lists(
        st.tuples(st.sampled_from(sorted(OPERATIONS.keys() - HARMFUL)), ARGUMENTS),
        min_size=1,
        max_size=6,
    )
)
def test_requests_with_anything_in_them_harm_no_other_client(
    requests: list[tuple[str, dict[str, Any]]],
) -> None:
    async def scenario() -> None:
        async with bench() as it:
            odd, peer = await it.connect(), await it.connect()
            await peer.call("run", env="python", code="1", session="kept")
            for op, args in requests:
                with suppress(NsmError), trio.move_on_after(3600) as patience:
                    await odd.call(op, **_sendable(args))
                if patience.cancelled_caught:
                    # Waited for, or done in a thread, for which virtual time does not wait: the
                    # answer may come yet, and be taken for the next one's.
                    odd = await it.connect()
            assert (await peer.call("run", env="python", code="mine"))["stdout"] == "mine"

    on_virtual_time(scenario)


@FEW
@given(
    begins=st.booleans(),
    says=st.lists(frames() | damaged(SEEDS["from-agent"]), min_size=1, max_size=5),
    then=st.sampled_from(["answer", "silence", "end"]),
)
def test_agents_that_lie_harm_no_other_session(
    begins: bool, says: list[dict[str, Any] | bytes], then: str
) -> None:
    lies = iter([True])

    async def behave(agent: FakeAgent, jail: FakeJail) -> None:
        if not next(lies, False):
            await echo(agent, jail)
            return
        asked: Mapping[str, Any] = {"id": "none"}
        if begins:
            await agent.be_ready()
            asked = await agent.receive()
        for said in says:
            if isinstance(said, bytes):
                await agent.send_raw(said[1:])
            else:
                await send(agent, {**said, "id": asked["id"]} if "id" in said else said)
        if then == "answer":
            await agent.answer(asked, stdout="the truth")
        if then != "end":
            await trio.sleep_forever()

    async def scenario() -> None:
        async with bench(behave) as it:
            victim, peer = await it.connect(), await it.connect()
            id_ = await victim.start("run", env="python", code="1", session="lied-to", stream=True)
            await trio.testing.wait_all_tasks_blocked()
            assert (await peer.call("run", env="python", code="mine"))["stdout"] == "mine"
            with suppress(NsmError), trio.fail_after(3600):
                await victim.answer(id_)  # one answer, whatever it is
            assert (await peer.call("run", env="python", code="mine"))["stdout"] == "mine"
            await peer.call("sessions", all=True)

    on_virtual_time(scenario)


async def send(agent: FakeAgent, frame: dict[str, Any]) -> None:
    """Send a frame, also one that an agent of ours would not: with a number that JSON has not."""
    try:
        await agent.send(frame)
    except FrameError:
        body = json.dumps(frame).encode()
        await agent.send_raw(len(body).to_bytes(4, "big") + body)


def _sendable(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments that a frame can carry: integers, for one, have 64 bits there."""
    sendable: dict[str, Any] = {}
    for name, value in args.items():
        with suppress(Exception):
            encode_frame({name: value})
            sendable[name] = value
    return sendable
