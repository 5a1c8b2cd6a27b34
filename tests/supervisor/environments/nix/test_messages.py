"""Reading nix's `internal-json`: progress, text, and garbage."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nsm.wire.decode import decode
from nsmd.environments.nix.messages import (
    MAX_ERROR_CHARS,
    NixLogReader,
)
from nsmd.host.command_monitor import CommandProgress

DRV = "/nix/store/ki9x7ywdi5yykaw8wvv59a813afa3jh7-pandas-2.2.drv"


def line(**message: Any) -> bytes:
    return b"@nix " + json.dumps(message).encode()


def read(*messages: dict[str, Any]) -> tuple[NixLogReader, list[str]]:
    reader, text = NixLogReader(), list[str]()
    for message in messages:
        text += reader.read_line(line(**message))
    return reader, text


def start(number: int, kind: int, text: str = "", level: int = 0, **more: Any) -> dict[str, Any]:
    return {"action": "start", "id": number, "type": kind, "text": text, "level": level, **more}


def result(number: int, kind: int, *fields: Any) -> dict[str, Any]:
    return {"action": "result", "id": number, "type": kind, "fields": fields}


def test_a_build_with_its_log() -> None:
    reader, text = read(
        start(1, 102),
        start(2, 104),
        result(2, 105, 0, 3, 1, 0),
        start(3, 105, f"building '{DRV}'", 3, fields=[DRV, "", 1, 1]),
        result(3, 104, "checkPhase"),
        result(3, 101, "all is \x1b[1mwell\x1b[0m"),
    )
    assert text == [f"building '{DRV}'", "pandas-2.2> all is well"]
    assert reader.progress == CommandProgress(
        phase="building", activity="building pandas-2.2 (checkPhase)", built=0, to_build=3
    )


def test_errors_are_kept_from_their_end() -> None:
    message = {"action": "msg", "level": 0, "msg": "\x1b[31;1merror:\x1b[0m no such luck"}
    reader, text = read({"action": "msg", "level": 1, "msg": "warning: old"}, message)
    assert text == ["warning: old", "error: no such luck"]
    assert reader.error == "error: no such luck"
    trace = [{"action": "msg", "level": 0, "msg": f"at {n} {'x' * 900}"} for n in range(100)]
    reader, _ = read(*trace, message)
    assert len(reader.error) < MAX_ERROR_CHARS + 100
    assert reader.error.endswith("no such luck")


def test_what_is_no_message_is_text() -> None:
    reader = NixLogReader()
    assert reader.read_line(b"git: \xffnot found\r") == ["git: \N{REPLACEMENT CHARACTER}not found"]
    assert reader.read_line(b"10%\r20%\r100%") == ["100%"]
    assert reader.read_line(b"\x1b]0;title\x07bell\x07") == ["bell\N{REPLACEMENT CHARACTER}"]
    assert reader.read_line(b"") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["start", "stop", "result", "msg"]) | JSON,
        "id": st.integers(0, 3) | JSON,
        "type": st.integers(100, 109) | JSON,
        "level": st.integers(-1, 8) | JSON,
        "fields": st.lists(st.integers() | st.text(max_size=8), max_size=4) | JSON,
        "text": JSON,
        "msg": JSON,
    },
)


@given(st.lists(MESSAGES | st.binary(max_size=40), max_size=30))
def test_garbage_is_survived(messages: list[Any]) -> None:
    reader = NixLogReader()
    for message in messages:
        data = b"@nix " + message if isinstance(message, bytes) else line(**message)
        for text in reader.read_line(data):
            assert text.isprintable()
    progress = reader.progress
    assert min(progress.built, progress.to_build, progress.downloaded_bytes) >= 0
    assert decode(CommandProgress, asdict(progress)) == progress
