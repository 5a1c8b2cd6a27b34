"""Connections of the proxy for builds: to addresses that were checked, and to no others."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import pytest
import trio
import trio.testing

from nsmd.environments.packages.index_proxy import connecting
from nsmd.environments.packages.index_proxy.connecting import open_connection
from nsmd.environments.packages.index_proxy.errors import FetchError
from nsmd.model.host_rules import Address, parse_host


class Changing:
    """A resolver whose answers change: DNS rebinding."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)

    async def __call__(self, name: str) -> Sequence[Address]:
        return [ip_address(text) for text in self._answers.pop(0).split()]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses that connections were made to; none is really made."""
    found: list[str] = []

    async def connect(addresses: Sequence[Address], port: int) -> None:
        found.extend(f"{address} {port}" for address in addresses)
        raise ConnectionRefusedError

    monkeypatch.setattr(connecting, "connect", connect)
    return found


async def test_a_name_is_looked_up_once_and_its_private_addresses_are_left_out(
    connected: list[str],
) -> None:
    resolve = Changing("8.8.8.8 127.0.0.1 10.0.0.1 ::ffff:10.0.0.1", "127.0.0.1")
    with pytest.raises(ConnectionRefusedError):
        await open_connection(resolve, lambda host, port: False, "a.test", 443)
    assert connected == ["8.8.8.8 443"]
    with pytest.raises(FetchError):
        await open_connection(resolve, lambda host, port: False, "a.test", 443)
    assert len(connected) == 1


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:127.0.0.1"]
)
async def test_a_private_address_has_to_be_named(text: str, connected: list[str]) -> None:
    host = parse_host(text)
    with pytest.raises(FetchError):
        await open_connection(Changing(), lambda host, port: False, host, 443)
    assert not connected
    with pytest.raises(ConnectionRefusedError):
        await open_connection(Changing(), lambda host, port: True, host, 443)
    assert connected == [f"{host} 443"]


async def test_names_that_cannot_be_looked_up() -> None:
    async def fails(name: str) -> Sequence[Address]:
        raise OSError

    with pytest.raises(FetchError, match="nobody knows an address"):
        await open_connection(fails, None, "a.test", 443)


async def test_a_look_up_that_hangs_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async def hangs(name: str) -> Sequence[Address]:
        await trio.sleep_forever()
        return ()

    with pytest.raises(FetchError, match="nobody knows an address"):
        await open_connection(hangs, None, "a.test", 443)
