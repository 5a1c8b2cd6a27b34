"""Readers of others' bytes raise what they say they raise, and nothing else.

Bytes begin as something valid that is then damaged: pure noise is refused at its first byte.
"""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samples
from fuzz_codecs import CODECS
from nsm.wire.errors import OverloadedError
from nsm.wire.frames import encode_frame
from nsm.wire.messages import Cancel, Event, Failure, Hello, Request, Result, to_wire
from sandbox.framing import encode_frame as encode_agent_frame

HELLO = encode_frame(to_wire(Hello(name="x", program_version="1", rights=("run",))))
SEEDS: dict[str, list[bytes]] = {
    "from-client": [
        HELLO,
        encode_frame(to_wire(Request(1, "run", {"env": "python", "code": "1", "timeout_s": 1.5}))),
        encode_frame(to_wire(Cancel(1))),
    ],
    "from-server": [
        HELLO,
        encode_frame(to_wire(Result(1, {"stdout": "x", "displays": [{"a": "b"}]}))),
        encode_frame(to_wire(Failure(0, OverloadedError("full", hint="wait")))),
        encode_frame(to_wire(Event(1, "output", {"stream": "stdout", "text": "x"}))),
    ],
    "from-agent": [
        encode_agent_frame(frame)
        for frame in (
            {"type": "ready", "protocol": 1, "python": "3", "capabilities": ["sequence"]},
            {"type": "output", "id": "1", "stream": "stdout", "text": "x", "seq": 1},
            {"type": "result", "id": "1", "stdout": "", "stderr": "", "exit_code": 0, "seq": 2},
            {"type": "status", "running": None, "background": 0},
            {"type": "file", "id": "1", "size": 3},
        )
    ],
    "from-mcp-client": [
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode() + b"\n",
        b'[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}]\n',
        b'{"jsonrpc":"2.0","id":"nsm-1","result":{}}\n',
    ],
    "attach-line": [
        b'{"nsm": 1, "attach": {"variables": {"PROJECT_DIR": "/a", "NSM_SCOPE": "x"}, "pid": 1}}',
        b'{"nsm": 1, "inherited": {"A": "1"}}',
    ],
    "transcript-file": [
        b"\n".join(
            json.dumps({"event": event, **data}).encode()
            for event, data in (
                ("session", samples.session_start()),
                ("execution", samples.execution_start()),
                ("output", {"execution_id": "x-1", "stream": "stdout", "text": "x"}),
                ("finished", samples.execution_end(exit_code=1)),
                ("end", samples.log_end()),
            )
        )
    ],
    "config-file": [
        b'[defaults]\nmemory_mb = 5\n[environments.a]\npreset = "python"\npreload = ["x"]\n',
        b'[project]\npath = "/a"\n[project.inherit_env]\nvars = ["A"]\n[pool]\nmax_spares = 0\n',
        b"when = 1979-05-27T07:32:00Z\nx = [inf, nan, 0x10]\n",
    ],
    "artifact-metadata": [
        b'{"schema": 1, "name": "a", "interpreter_type": "python", "program": "/x"}',
        b'{"environments": {"a": {"interpreter_type": "bash"}}, "session": {"idle": 5}}',
    ],
    "nix-messages": [
        b'@nix {"action":"start","id":1,"level":3,"type":105,"text":"x","fields":["a","b",1,1]}\n',
        b'@nix {"action":"result","id":1,"type":105,"fields":[1,2,3,4]}\nplain words\n',
    ],
}
"""Valid input of each reader."""


FEW = settings(max_examples=10, derandomize=True)
"""Settings of a run of all tests, the same in each; `make soak` and `make fuzz` look for others."""


def test_each_reader_has_something_to_begin_with() -> None:
    assert SEEDS.keys() == CODECS.keys()


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Valid input, cut, repeated, exchanged and overwritten."""
    parts = draw(st.lists(st.sampled_from(seeds), min_size=1, max_size=4))
    data = bytearray(draw(st.sampled_from([b"\x01", b"\x07", b"\xff"])) + b"".join(parts))
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["put", "cut", "set", "repeat"])):
            case "put":
                data[at:at] = draw(st.binary(max_size=9))
            case "cut":
                del data[at : at + draw(st.integers(1, 9))]
            case "set":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case _:
                end = at + draw(st.integers(1, 40))
                data[at:at] = data[at:end] * draw(st.sampled_from([1, 2, 50]))
    return bytes(data)


@pytest.mark.parametrize("name", CODECS)
def test_damaged_input_is_read_or_refused(name: str) -> None:
    @FEW
    @given(data=damaged(SEEDS[name]))
    def run(data: bytes) -> None:
        CODECS[name](data)

    run()


@pytest.mark.slow
@pytest.mark.parametrize("name", CODECS)
def test_much_damaged_input_is_read_or_refused(name: str) -> None:
    @settings(max_examples=3_000)
    @given(data=damaged(SEEDS[name]))
    def run(data: bytes) -> None:
        CODECS[name](data)

    run()


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("name", ["attach-line", "from-mcp-client", "artifact-metadata"])
def test_json_of_other_shapes_is_read_or_refused(name: str) -> None:
    """Valid JSON whose members are of any type."""
    shapes = [json.loads(seed) for seed in SEEDS[name]]

    @FEW
    @given(shape=st.sampled_from(shapes), changes=st.lists(VALUES, min_size=1, max_size=4))
    def run(shape: Any, changes: list[Any]) -> None:
        text = json.dumps(_changed(shape, iter(changes)))
        CODECS[name](b"\xff" + text.encode() + b"\n")

    run()


def _changed(shape: Any, values: Any) -> Any:
    """Every other member is another value, as long as there are some."""
    if isinstance(shape, dict):
        members = cast("dict[str, Any]", shape)
        return {
            key: next(values, member) if number % 2 else _changed(member, values)
            for number, (key, member) in enumerate(members.items())
        }
    if isinstance(shape, list):
        return [_changed(member, values) for member in _members(shape)]
    return next(values, shape)


def _members(array: Any) -> list[Any]:
    return list(array)
