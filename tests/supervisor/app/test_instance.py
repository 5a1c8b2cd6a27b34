"""Clients that wait for a supervisor that cannot start, and the configuration that held last."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsm.wire.errors import StartFailedError
from nsm.wire.messages import ClientConnection, Failure, Hello
from nsmd.app import instance as failed_start

if TYPE_CHECKING:
    from collections.abc import Generator

WHY = "config.toml: pool.max_spares: must be a number"


@pytest.fixture
def listener(tmp_path: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        made.listen()
        made.setblocking(False)
        yield made


def connected(listener: socket.socket, words: bytes) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(listener.getsockname())
    client.sendall(words)
    return client


def heard(client: socket.socket) -> bytes:
    """All that comes, to the end."""
    with client, client.makefile("rb") as stream:
        return stream.read()


def test_everybody_is_told_in_their_own_protocol(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_start, "WORDS_TIMEOUT_S", 0.05)
    protocol = ClientConnection()
    hello = protocol.send(Hello(name="test", program_version="0"))
    control = connected(listener, hello)
    shim = connected(listener, b'{"nsm": 1, "attach": {}}\n')
    silent = connected(listener, b"")
    gone = connected(listener, hello)
    gone.close()
    assert failed_start.refuse_waiting(listener, WHY) == 4
    protocol.receive_data(heard(control))
    told = protocol.next_message()
    assert isinstance(told, Failure)
    assert isinstance(told.error, StartFailedError)
    assert told.error.message == f"The supervisor cannot start: {WHY}"
    answer = json.loads(heard(shim))
    assert answer["error"]["code"] == "start-failed"
    assert WHY in answer["error"]["message"]
    assert heard(silent) == b""
    assert failed_start.refuse_waiting(listener, WHY) == 0


def test_the_configuration_of_the_last_start_is_kept(tmp_path: Path) -> None:
    config, state = tmp_path / "config.toml", str(tmp_path / "state")
    config.write_text("[pool]\nmax_spares = 1\n")
    failed_start.remember_config(str(config), state)
    config.write_text("[pool\n")
    kept = Path(failed_start.last_good(state))
    assert kept.read_text() == "[pool]\nmax_spares = 1\n"
    # Without a file, defaults held.
    failed_start.remember_config(str(tmp_path / "none"), state)
    assert not kept.exists()
    # A directory that cannot be had is no reason not to start.
    failed_start.remember_config(str(config), str(config / "x"))
