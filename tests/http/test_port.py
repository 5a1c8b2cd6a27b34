"""The port is nobody else's while there is no supervisor."""

from __future__ import annotations

import errno
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

import pytest

from e2e_clients import replaced
from e2e_support import supervisor
from http_support import CONFIG, sdk_client, token_of, url_of
from nsmd.http.port import NAME, HeldPort, bound
from nsmd.loopback import Port
from nsmd.survival.store import NoStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ANY = Port("127.0.0.1", 0)


class Keeps(NoStore):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, list[int]] = {}

    def keep(self, name: str, descriptors: Sequence[int]) -> None:
        self.kept[name] = [os.dup(each) for each in descriptors]

    def drop(self, name: str) -> None:
        for descriptor in self.kept.pop(name, []):
            os.close(descriptor)


def test_the_next_supervisor_goes_on_with_the_same_socket() -> None:
    store = Keeps()
    first = HeldPort(store)
    with first.listen(ANY) as listener:
        port = Port(*listener.getsockname())
    assert [name for name, _ in first.everything_kept()] == [NAME]
    kept = [os.dup(each) for each in store.kept[NAME]]
    first.forget()  # of its process; what is kept for the next one is `kept`
    with pytest.raises(OSError, match="in use") as caught:
        bound(port)
    assert caught.value.errno == errno.EADDRINUSE
    second = HeldPort(store, kept)
    with (
        socket.create_connection((port.host, port.number)) as waiting,
        second.listen(port) as listener,
    ):
        listener.setblocking(True)
        accepted, peer = listener.accept()
        accepted.close()
        assert peer == waiting.getsockname()
        assert not os.get_inheritable(listener.fileno())
    second.forget()
    assert not store.kept
    bound(port).close()


def test_one_that_is_not_what_is_wanted_is_closed() -> None:
    store = Keeps()
    other, unrelated = bound(ANY), socket.socket(socket.AF_UNIX)
    there = Port(*other.getsockname())
    held = HeldPort(store, [other.detach(), unrelated.detach()])
    wanted = bound(ANY)
    number = wanted.getsockname()[1]
    wanted.close()
    with held.listen(Port("127.0.0.1", number)) as listener:
        assert listener.getsockname()[1] == number
    bound(there).close()
    held.forget()


def test_what_is_kept_is_let_go_where_nothing_is_listened_at() -> None:
    earlier = bound(ANY)
    there = Port(*earlier.getsockname())
    HeldPort(Keeps(), [earlier.detach()]).forget()
    bound(there).close()


@pytest.mark.jail
async def test_nobody_gets_the_port_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with supervisor(tmp_path, config=CONFIG) as running:
        url, token = url_of(running), token_of(running)
        number = int(url.rsplit(":", 1)[1].split("/")[0])
        with replaced(running, meanwhile=partial(refused, number)) as later:
            assert url_of(later) == url
            async with sdk_client(url, token, "legacy") as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["run"]


def refused(number: int) -> None:
    with pytest.raises(OSError, match="in use"):
        bound(Port("127.0.0.1", number))
