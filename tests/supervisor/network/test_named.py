"""Programs of real jails that know no proxy, and agents that lie about them."""

from __future__ import annotations

import os
import socket

import pytest
import trio

from netbench import Names, open_netbench, open_world
from nsmd.jail.program_code import source_of
from nsmd.model.values import NetworkRule
from nsmd.network.named import NamedChannel, NamedError
from realjail import needs_bwrap, new_launcher

PLAIN = """
import socket, errno
def reach(name, port, family=0):
    try:
        place = socket.getaddrinfo(name, port, family, socket.SOCK_STREAM)[0][4]
        with socket.create_connection(place[:2], 20) as s:
            s.sendall(b"GET /named HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            return s.makefile("rb").read().splitlines()[-1].decode()
    except socket.gaierror as error:
        return str(error.errno == socket.EAI_NONAME)
    except OSError as error:
        return errno.errorcode[error.errno]
def tell(name, port, family=0):
    print(reach(name, port, family))
"""


@needs_bwrap
@pytest.mark.parametrize("kind", ["forked", "cold"])
async def test_listed_names_are_reached_and_nothing_else(kind: str) -> None:
    known = {"world.test": ["127.0.0.1"], "a.sub.test": ["::1", "127.0.0.1"]}
    names = Names({**known, "rebound.test": ["10.0.0.1"], "silent.test": ["127.0.0.1"]})
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
    async with open_world() as world:
        port = world.port
        allow: tuple[str, ...] = (f"world.test:{port}", f"*.sub.test:{port}", "127.0.0.1:*")
        allow += ("[::1]:*", "any.test:*", "rebound.test", f"silent.test:{nobody}", "unknown.test")
        rules = {"python": NetworkRule(mode="allow", allow=allow), "python-off": NetworkRule()}
        async with open_netbench(rules, names=names, forked=kind == "forked") as bench:
            table = [
                (f"'world.test', {port}", "world: GET /named "),
                (f"'WORLD.test.', {port}, socket.AF_INET", "world: GET /named "),
                (f"'a.sub.test', {port}, socket.AF_INET6", "world: GET /named "),
                (f"'sub.test', {port}", "True"),
                (f"'other.test', {port}", "True"),
                (f"'any.test', {port}", "True"),  # its pattern names no ports
                (f"'world.test', {port + 1}", "ECONNREFUSED"),
                ("'rebound.test', 80", "ECONNRESET"),
                ("'unknown.test', 443", "ECONNRESET"),
                (f"'silent.test', {nobody}", "ECONNRESET"),
                ("'9.9.9.9', 53", "ENETUNREACH"),
            ]
            code = PLAIN + "\n".join(f"tell({words})" for words, _ in table)
            result = await bench.run(code)
            assert result.outcome.stdout.split("\n")[:-1] == [says for _, says in table]
            decisions = bench.network().decisions_since()
            assert [(d.protocol, d.host, d.port, d.verdict) for d in decisions] == [
                ("tcp", "world.test", port, "allowed"),
                ("tcp", "world.test", port, "allowed"),
                ("tcp", "a.sub.test", port, "allowed"),
                ("tcp", "sub.test", 0, "not-allowed"),
                ("tcp", "other.test", 0, "not-allowed"),
                ("tcp", "any.test", 0, "unresolved"),
                ("tcp", "rebound.test", 80, "address"),
                ("tcp", "unknown.test", 443, "unresolved"),
                ("tcp", "silent.test", nobody, "unreachable"),
            ]
            # Nothing was looked up before a program connected.
            assert names.asked == [
                *("world.test", "world.test", "a.sub.test", "rebound.test"),
                *("unknown.test", "silent.test"),
            ]
            failed = await bench.run(
                PLAIN + f"tell('other.test', 1); tell('silent.test', {nobody}); raise OSError"
            )
            assert (
                f"refused: other.test, silent.test:{nobody} (allowed, and does not answer)"
                in failed.notes[0]
            )
            # A session without a network is as it was: it asks nobody.
            off = await bench.text(
                f"{PLAIN}import os\ntell('world.test', {port})\n"
                "print(os.path.exists('/etc/resolv.conf'), open('/etc/nsswitch.conf').read())\n"
                "print(open('/proc/sys/net/ipv4/ip_unprivileged_port_start').read())\n"
                "for kind in 'udp', 'tcp': print(len(open(f'/proc/net/{kind}').readlines()))",
                env="python-off",
                session="off",
            )
            assert off.split() == [
                *("True", "False", "passwd:", "files", "group:", "files", "hosts:", "files"),
                *("1024", "1", "1"),
            ]


@needs_bwrap
async def test_ports_names_and_floods_are_bounded() -> None:
    """A server of the session's own, more names than there are listeners, what is no question."""
    async with open_world() as world:
        port = world.port
        allow = (f"world.test:{port}", f"*.sub.test:{port}", "127.0.0.1:*")
        names = Names({"world.test": ["127.0.0.1"], "n199.sub.test": ["127.0.0.1"]})
        rule = NetworkRule(mode="allow", allow=allow)
        async with open_netbench({"python": rule}, names=names) as bench:
            said = await bench.text(
                f"{PLAIN}PORT = {port}\n"
                "mine = socket.create_server(('127.0.0.1', PORT)); mine.close()\n"
                "everywhere = socket.create_server(('0.0.0.0', PORT))\n"
                "tell('world.test', PORT, socket.AF_INET); everywhere.close()\n"
                "for number in range(200): socket.getaddrinfo(f'n{number}.sub.test', PORT)\n"
                "tell('n199.sub.test', PORT); tell('world.test', PORT)\n"
                "tell('world.1', PORT)\n"
                "asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                "asker.connect(('198.18.0.1', 53)); asker.settimeout(5)\n"
                "head = b'ab\\0\\0\\0\\1' + bytes(6)\n"
                "for packet in (b'', b'x' * 11, head + b'\\77' * 400,\n"
                "               b'ab\\x80' + b'\\0' * 500, bytes(600)): asker.send(packet)\n"
                "asker.send(b'ok\\1\\0\\0\\1' + bytes(6) + b'\\5world\\4test\\0\\0\\x10\\0\\1')\n"
                "while (got := asker.recv(600))[:2] != b'ok': pass\n"
                "print(got[3] & 15, got[6:8])\n"
                "for number in range(3000): asker.send(b'no\\1\\0\\0\\1' + bytes(6) + "
                "b'\\4leak\\4test\\0\\0\\1\\0\\1')\n"
                "tell('world.test', PORT)\n"
            )
            assert said.splitlines() == [
                "False",  # it has no address of that family
                "world: GET /named ",
                "world: GET /named ",
                "True",  # a name that means an address to others, which end the channel for it
                "0 b'\\x00\\x00'",
                "world: GET /named ",
            ]
            assert set(names.asked) <= {"world.test", "n199.sub.test"}


@needs_bwrap
@pytest.mark.parametrize("measure", [True, False])
async def test_a_name_that_is_not_allowed_never_leaves(
    measure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by an agent either that resolves every name, and passes every connection on."""
    if not measure:
        monkeypatch.setattr("nsmd.network.host_check.check_name", lambda allowed, *_, **__: allowed)
    source = source_of("sandbox_agent")
    weakened = source.replace(b"return sorted(found)[:MAX_PORTS]", b"return [80]", 1)
    assert weakened != source
    names = Names({"data.leak.test": ["127.0.0.1"]})
    rule = NetworkRule(mode="allow", allow=("example.org",))
    launcher = new_launcher().with_agent(weakened)
    async with open_netbench({"python": rule}, names=names, launcher=launcher) as bench:
        assert await bench.text(f"{PLAIN}tell('data.leak.test', 80)") == "ECONNRESET\n"
        assert names.asked == ([] if measure else ["data.leak.test"])
        (decision,) = bench.network().decisions_since()
        assert decision.verdict == ("not-allowed" if measure else "address")


@pytest.mark.parametrize(
    "lie", ["file", "stream", "no form", "no name", "no port", "no socket", "datagrams", "ended"]
)
async def test_an_agent_that_lies_loses_its_channel(lie: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        if lie == "file":
            with open("/dev/null", "rb") as file, pytest.raises(NamedError):  # noqa: ASYNC230
                NamedChannel(os.dup(file.fileno()))
            return
        if lie == "stream":
            one, other = socket.socketpair()
            with other, pytest.raises(NamedError):
                NamedChannel(one.detach())
            return
        channel = NamedChannel(os.dup(ours.fileno()))
        passed: list[socket.socket] = []
        if lie == "datagrams":
            passed = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
        words = {
            "no form": b"\xff",
            "no name": b"refused a..b\0",
            "no port": b"refused a.test 65536",
            "no socket": b"connected a.test 80",
            "datagrams": b"connected a.test 80",
            "ended": b"",
        }[lie]
        socket.send_fds(theirs, [words], [each.fileno() for each in passed])
        with trio.fail_after(10), pytest.raises(NamedError):
            await channel.receive()
        channel.close()
        for each in passed:
            each.close()
