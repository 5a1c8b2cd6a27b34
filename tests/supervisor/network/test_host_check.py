"""Steps between a host and an address: names, look-ups, where to connect."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Sequence
from ipaddress import ip_address

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from netbench import Names
from nsmd.model.host_rules import HOST_NAME, Address, AllowList, parse_host
from nsmd.network import host_check
from nsmd.network.connections import (
    MAX_LOOK_UPS,
    MAX_SESSION_LOOK_UPS,
    FewAtOnce,
    SystemResolver,
    UserHosts,
    connect,
)
from nsmd.network.decisions import RefusedError
from nsmd.network.host_check import embedded, is_own, may_stay, usable_addresses, why_not_public

SPECIAL = """
    0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254 168.63.129.16
    169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.168.1.1 198.18.0.1
    198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255
    :: ::1 ::2 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 2001::1 2001:db8::1 2002:a00:1::
    2002:101:101:: 3fff::1 4000::1 100::1 64:ff9b:1::a00:1
    ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::10.0.0.1 64:ff9b::7f00:1
""".split()
PUBLIC = """
    1.1.1.1 8.8.8.8 9.255.255.255 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
    172.15.255.255 172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0
    223.255.255.255 2606:4700::1111 2a00::1 3ffe:ffff::1 ::ffff:1.1.1.1 64:ff9b::1.1.1.1
""".split()


@pytest.mark.parametrize("text", SPECIAL)
def test_special_addresses_are_not_public(text: str) -> None:
    assert why_not_public(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_other_addresses_are_public(text: str) -> None:
    assert why_not_public(ip_address(text)) is None


@given(st.ip_addresses())
def test_addresses_that_python_knows_as_private_are_not_public(address: Address) -> None:
    inner = embedded(address)
    if why_not_public(address) is None:
        kinds = ("private", "loopback", "link_local", "multicast", "unspecified", "reserved")
        assert not [kind for kind in kinds if getattr(inner, f"is_{kind}")]


def outside_address() -> str:
    """An address of this machine that is not its loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("1.1.1.1", 9))
        except OSError:
            pytest.skip("not here: this machine has no network")
        return str(probe.getsockname()[0])


def test_the_machine_s_own_addresses_are_known_whatever_they_are() -> None:
    assert is_own(ip_address("127.0.0.1"))
    assert is_own(ip_address("127.1.2.3")) is False  # the kernel answers from 127.0.0.1
    assert is_own(ip_address(outside_address()))
    assert is_own(ip_address(f"::ffff:{outside_address()}"))
    assert not is_own(ip_address("1.1.1.1"))


async def refusal(names: Names, allow: Sequence[str], host: str, port: int = 443) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        await usable_addresses(AllowList.of(allow), parse_host(host), port, names)
    return refused.value


async def test_a_host_that_is_not_allowed_is_not_looked_up() -> None:
    names = Names({"secret.evil.test": ["1.1.1.1"]})
    for allow in ([], ["example.org"], ["*.evil.test:80"]):
        refused = await refusal(names, allow, "secret.evil.test")
        assert refused.verdict == ("port" if "*.evil.test:80" in allow else "not-allowed")
    with pytest.raises(RefusedError, match="network is off"):
        await usable_addresses(None, "secret.evil.test", 443, names)
    assert names.asked == []


@pytest.mark.parametrize(
    ("allow", "host", "answers", "reached"),
    [
        (["a.test"], "a.test", ["1.1.1.1"], ["1.1.1.1"]),
        (["a.test"], "a.test", ["10.0.0.1", "1.1.1.1"], ["1.1.1.1"]),
        (["a.test"], "a.test", ["10.0.0.1"], None),
        (["a.test"], "a.test", ["::ffff:10.0.0.1"], None),
        (["a.test"], "a.test", ["127.0.0.1"], None),
        (["*"], "a.test", ["127.0.0.1"], None),
        (["*:*"], "a.test", ["169.254.169.254"], None),
        (["*", "a.test"], "a.test", ["10.0.0.1"], None),
        (["a.test", "10.0.0.1"], "a.test", ["10.0.0.1"], ["10.0.0.1"]),
        (["a.test", "10.0.0.0/8"], "a.test", ["10.9.9.9", "192.168.0.1"], ["10.9.9.9"]),
        (["a.test", "10.0.0.1:80"], "a.test", ["10.0.0.1"], None),
        (["10.0.0.0/8"], "10.1.1.1", [], ["10.1.1.1"]),
        (["*"], "1.1.1.1", [], ["1.1.1.1"]),
        (["*"], "10.0.0.1", [], None),
        (["*"], "::1", [], None),
        (["127.0.0.1"], "127.0.0.1", [], ["127.0.0.1"]),
        (["*"], HOST_NAME, ["1.1.1.1"], None),
        (["*.nsm.internal"], HOST_NAME, ["1.1.1.1"], None),
        ([HOST_NAME], HOST_NAME, ["1.1.1.1"], ["127.0.0.1", "::1"]),
    ],
)
async def test_an_address_is_the_world_s_or_named(
    allow: list[str], host: str, answers: list[str], reached: list[str] | None
) -> None:
    names = Names({host: answers})
    if reached is None:
        assert (await refusal(names, allow, host)).verdict == "address"
    else:
        found = await usable_addresses(AllowList.of(allow), parse_host(host), 443, names)
        assert [str(address) for address in found] == reached


async def test_a_public_address_of_this_machine_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_own(address: Address) -> bool:
        return str(address) == "1.1.1.1"

    monkeypatch.setattr(host_check, "is_own", is_own)
    names = Names({"a.test": ["1.1.1.1"], "b.test": ["1.1.1.2"]})
    assert (await refusal(names, ["*"], "a.test")).verdict == "address"
    assert await usable_addresses(AllowList.of(["*"]), "b.test", 443, names)


@pytest.mark.parametrize("answer", ["127.0.0.1", "10.0.0.1", "::1", "fd00::1", "169.254.169.254"])
async def test_a_host_that_the_user_names_may_be_private(answer: str) -> None:
    names, allowed = Names({"a.test": [answer], "b.test": [answer]}), AllowList.of(["*:*"])
    user = UserHosts(named=AllowList.of(["a.test:443"]))
    found = await usable_addresses(allowed, "a.test", 443, names, user=user)
    assert [str(address) for address in found] == [answer]
    assert may_stay(allowed, "a.test", 443, ip_address(answer), user)
    for host, port in (("a.test", 444), ("b.test", 443)):
        with pytest.raises(RefusedError, match="is not reached"):
            await usable_addresses(allowed, host, port, names, user=user)
        assert not may_stay(allowed, host, port, ip_address(answer), user)


async def test_a_name_that_nobody_knows_and_a_resolver_that_fails() -> None:
    assert (await refusal(Names(), ["a.test"], "a.test")).verdict == "unresolved"

    async def failing(name: str) -> Sequence[Address]:
        raise OSError(errno.EIO, name)

    with pytest.raises(RefusedError, match="has no address"):
        await usable_addresses(AllowList.of(["a.test"]), "a.test", 443, failing)


async def test_one_session_leaves_look_ups_to_others(autojump_clock: trio.abc.Clock) -> None:
    running = most = 0

    async def slow(name: str) -> Sequence[Address]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        return [ip_address("1.1.1.1")]

    few = FewAtOnce(slow)
    async with trio.open_nursery() as nursery:
        for number in range(3 * MAX_SESSION_LOOK_UPS):
            nursery.start_soon(few, f"h{number}.test")
    assert most == MAX_SESSION_LOOK_UPS < MAX_LOOK_UPS


async def test_look_ups_that_hang_leave_threads_to_other_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for them any more, and their threads are there."""
    go_on = threading.Event()

    def answer(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if name == "hangs.test":
            go_on.wait(60)
        return [("", "", "", "", ("1.1.1.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    resolver = SystemResolver()
    hostile = FewAtOnce(resolver)
    for _ in range(2 * MAX_LOOK_UPS // MAX_SESSION_LOOK_UPS):
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_SESSION_LOOK_UPS):
                nursery.start_soon(hostile, "hangs.test")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    try:
        with trio.fail_after(20):
            assert await FewAtOnce(resolver)("a.test") == [ip_address("1.1.1.1")]
    finally:
        go_on.set()
    with trio.fail_after(20):
        assert await hostile("a.test") == [ip_address("1.1.1.1")]


async def test_a_resolver_that_hangs_is_given_up(autojump_clock: trio.abc.Clock) -> None:
    async def hanging(_: str) -> Sequence[Address]:
        await trio.sleep_forever()
        return ()

    with pytest.raises(RefusedError) as refused:
        await usable_addresses(AllowList.of(["a.test"]), "a.test", 443, hanging)
    assert refused.value.verdict == "unresolved"


async def test_the_first_address_that_answers_is_taken_and_all_failing_say_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        # The second of the loopback's addresses has nobody at that port.
        found, address = await connect([ip_address("127.0.0.2"), ip_address("127.0.0.1")], port)
        assert str(address) == "127.0.0.1"
        await found.aclose()
    with pytest.raises(ConnectionRefusedError):
        await connect([ip_address("127.0.0.1")], port)
