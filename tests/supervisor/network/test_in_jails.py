"""Code and users' programs in real jails, through the proxy, to a server on the host."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest
import trio

from netbench import Names, NetBench, change_brokers, open_netbench, open_world
from nsm.jail import landlock
from nsm.wire.errors import BadRequestError
from nsmd.jail.host import network_files
from nsmd.jail.program_code import source_of
from nsmd.model.host_rules import parse_rules
from nsmd.model.values import NetworkRule
from realjail import needs_bwrap, new_launcher

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = needs_bwrap

FETCH = """
import urllib.error, urllib.request
def fetch(url, **options):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, **options)).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}: {error.read().decode()}"
    except OSError as error:
        return str(error)
"""


@pytest.mark.parametrize("kind", ["forked", pytest.param("cold", marks=pytest.mark.slow)])
async def test_code_reaches_the_hosts_of_its_list_and_no_other(kind: str) -> None:
    async with open_world() as world:
        allow = (f"world.test:{world.port}", f"127.0.0.1:{world.port}", "rebound.test")
        names = Names({"world.test": ["127.0.0.1"], "rebound.test": ["10.0.0.1", "::1"]})
        rules = {
            "python": NetworkRule(mode="allow", allow=allow),
            "bash": NetworkRule(mode="allow", allow=allow),
            "python-nothing": NetworkRule(mode="allow"),
            "python-off": NetworkRule(),
        }
        async with open_netbench(rules, names=names, forked=kind == "forked") as bench:
            url = f"http://world.test:{world.port}"
            said = await bench.text(
                f"{FETCH}\n"
                f"print(fetch('{url}/a?b', data=b'body'))\n"
                "print(fetch('http://other.test/'))\n"
                "print(fetch('https://other.test/'))\n"
                "print(fetch('http://rebound.test/'))\n"
            )
            post, other, tunnel, rebound, *_ = said.replace("\n\n", "\n").splitlines()
            assert post == "world: POST /a?b body"
            assert other.startswith("403 Host not allowed (nsm): other.test:80 is not allowed.")
            assert tunnel.endswith("Tunnel connection failed: 403 Host not allowed (nsm)>")
            assert "10.0.0.1 is private, ::1 is loopback" in rebound
            # What is not allowed is not even looked up.
            assert set(bench.names.asked) == {"world.test", "rebound.test"}

            network = bench.network()
            assert [d.verdict for d in network.decisions_since()] == [
                "allowed",
                "not-allowed",
                "not-allowed",
                "address",
            ]
            mark = network.made
            proxy = "http://127.0.0.1:3128"
            said = await bench.text(
                f"curl -sS {url}/curl; echo; curl -sS -p -x {proxy} {url}/tunnel; echo; "
                f"curl -sS -x socks5h://127.0.0.1:3128 {url}/socks; echo; "
                "curl -sS -x socks5h://127.0.0.1:3128 http://other.test/ 2>&1; "
                f"curl -sS --noproxy '*' http://127.0.0.1:{world.port}/ 2>&1 ||:",
                env="bash",
                session="b",
            )
            assert [line.partition(" ")[2] for line in said.splitlines()[:3]] == [
                "GET /curl ",
                "GET /tunnel ",
                "GET /socks ",
            ]
            assert "Failed to connect to 127.0.0.1" in said  # the session's own, where nobody is
            decisions = bench.network("b").decisions_since()
            assert [(d.protocol, d.verdict) for d in decisions] == [
                ("http", "allowed"),
                ("connect", "allowed"),
                ("socks5", "allowed"),
                ("socks5", "not-allowed"),
            ]
            assert not network.refused_since(mark)
            assert bench.gateway.counters.verdicts["allowed"] == 4

            nothing = await bench.text(
                f"{FETCH}\nprint(fetch('{url}'))", env="python-nothing", session="c"
            )
            assert "Allowed here: nothing" in nothing
            off = await bench.text(
                f"{FETCH}\nimport os\nprint(os.environ.get('HTTP_PROXY'), fetch('{url}'))",
                env="python-off",
                session="d",
            )
            assert off.startswith("None ")
            assert not world.requests[4:]


SMUGGLE = """
import socket
client = socket.create_connection(("127.0.0.1", 3128))
hidden = b"GET /hidden HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n"
body = b"%x\\r\\n%s\\r\\n0\\r\\n\\r\\n" % (len(hidden), hidden)
first = body.index(b"GET")
client.sendall(
    b"POST http://host.nsm.internal:{port}/ HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n"
    b"Transfer-Encoding: chunked\\r\\nContent-Length: %d\\r\\n\\r\\n" % first + body
)
answer = b""
while piece := client.recv(65536):
    answer += piece
print(answer.decode().splitlines()[0])
"""


@pytest.mark.parametrize("measure", [True, False])
async def test_code_cannot_hide_a_request_from_the_proxy_and_show_it_to_the_server(
    measure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server believes Content-Length, and takes what follows for another request."""
    if not measure:
        change_brokers(monkeypatch, "proxy_requests.check_length = print")
    seen = b""

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal seen
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        head, _, body = head.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head.lower())
        assert found
        while b"\r\n\r\n" not in body:
            body += await stream.receive_some()
        seen = body[int(found[1]) :]
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        rule = NetworkRule(mode="allow", allow=(f"host.nsm.internal:{port}",))
        async with open_netbench({"python": rule}) as bench:
            answer = await bench.text(SMUGGLE.format(port=port))
        nursery.cancel_scope.cancel()
    if measure:
        assert answer == "HTTP/1.1 400 Bad request to proxy (nsm)\n"
        assert seen == b""
    else:
        assert seen.startswith(b"GET /hidden HTTP/1.1\r\n")


CHANGED = {
    "python": (
        "import os; kept = [1]",
        "kept.append(2); print(kept, os.environ.get('HTTP_PROXY'))",
        "[1, 2]",
    ),
    "bash": ("kept=1", 'kept+=2; echo "$kept" "$HTTP_PROXY"', "12"),
    "node": (
        "let kept = [1]",
        "kept.push(2); console.log(kept.length, process.env.HTTP_PROXY)",
        "2",
    ),
}


@pytest.mark.parametrize(
    "env", ["python", *(pytest.param(env, marks=pytest.mark.slow) for env in ("bash", "node"))]
)
async def test_a_list_is_changed_while_a_session_runs(env: str) -> None:
    before, after, kept = CHANGED[env]
    async with open_world() as world, open_netbench({env: NetworkRule()}) as bench:
        await bench.text(before, env=env)
        network = bench.network()
        with pytest.raises(BadRequestError, match="not in this session's list"):
            network.deny(parse_rules(["x.org"]))
        await network.allow(parse_rules([f"host.nsm.internal:{world.port}"]))
        assert network.facts()["port"] == 3128
        # What the session had is still there, and nothing was printed on the way.
        assert await bench.text(after, env=env) == f"{kept} http://127.0.0.1:3128\n"
        fetch = f"curl -sS http://host.nsm.internal:{world.port}/x 2>&1"
        call = {
            "bash": fetch,
            "python": f"import subprocess; print(subprocess.getoutput({fetch!r}))",
            "node": f"require('child_process').execSync({fetch!r}).toString()",
        }[env]
        result = await bench.run(call, env=env)
        assert "world: GET /x" in result.outcome.stdout + str(result.outcome.displays)
        network.turn_off()
        assert network.facts()["mode"] == "off"
        result = await bench.run(call, env=env)
        told = result.outcome.stdout + str(result.outcome.displays)
        assert "network is off" in told
        assert [d.verdict for d in network.decisions_since()] == ["allowed", "off"]
        # An interpreter that restarts has them as well.
        leave = {"python": "exit()", "bash": "exit", "node": "process.exit()"}
        await bench.run(leave[env], env=env)
        fresh = {
            "python": "import os; print(os.environ['HTTP_PROXY'])",
            "bash": 'echo "$HTTP_PROXY"',
            "node": "console.log(process.env.HTTP_PROXY)",
        }[env]
        assert await bench.text(fresh, env=env) == "http://127.0.0.1:3128\n"


async def test_a_port_that_code_has_taken_is_left_to_it() -> None:
    take = "import socket; s = socket.create_server(('127.0.0.1', 3128))"
    async with open_netbench({"python": NetworkRule()}) as bench:
        await bench.text(take)
        network = bench.network()
        await network.allow(parse_rules(["example.org"]))
        port = network.facts()["port"]
        assert port not in (None, 3128)
        said = await bench.text("import os; print(os.environ['https_proxy'])")
        assert said == f"http://127.0.0.1:{port}\n"


HOLD = """
import socket
held = socket.create_connection(("127.0.0.1", 3128))
held.settimeout(20)
held.sendall(b"CONNECT {host} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
print(held.recv(1000).decode().splitlines()[0])
"""


async def hold(_: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def test_a_connection_ends_once_it_is_allowed_no_more() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, hold, listeners)
        name = f"host.nsm.internal:{port}"
        rule = NetworkRule(mode="allow", allow=(name, "example.org"))
        async with open_netbench({"python": rule}) as bench:
            assert await bench.text(HOLD.format(host=name)) == (
                "HTTP/1.1 200 Connection established\n"
            )
            network = bench.network()
            network.deny(parse_rules(["example.org"]))
            assert network.facts()["connections"] == 1
            network.deny(parse_rules([name]))
            assert await bench.text("print(held.recv(10))") == "b''\n"
            assert network.facts()["connections"] == 0
        nursery.cancel_scope.cancel()


async def test_a_session_s_network_is_chosen_at_its_start_and_not_by_later_calls() -> None:
    rule = NetworkRule(mode="allow", allow=("example.org",))
    async with open_netbench({"python": NetworkRule()}) as bench:
        bench.client = dataclasses.replace(bench.client, network=rule)
        await bench.text("1")
        assert bench.network().rule == rule
        await bench.text("2")
        bench.client = dataclasses.replace(bench.client, network=NetworkRule())
        with pytest.raises(BadRequestError, match=r"its network is limited to example\.org"):
            await bench.text("3")


OF_HOST = """
import os, socket
def reached(address):
    kind = socket.AF_UNIX if isinstance(address, bytes) else socket.AF_INET
    try:
        with socket.socket(kind) as s:
            s.settimeout(5)
            s.connect(address)
            return "reached"
    except OSError as error:
        return error.strerror
"""


@pytest.mark.parametrize("kind", ["forked", pytest.param("cold", marks=pytest.mark.slow)])
async def test_the_host_s_network_is_the_host_s_and_nothing_else_of_it(kind: str) -> None:
    abstract = f"\0nsm-test-{os.urandom(8).hex()}".encode()
    rules = {"python": NetworkRule(mode="full"), "python-off": NetworkRule()}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(abstract)
        listener.listen(5)
        async with open_world() as world, open_netbench(rules, forked=kind == "forked") as bench:
            said = await bench.text(
                f"{OF_HOST}"
                "print(sorted(name for _, name in socket.if_nameindex()))\n"
                f"print(reached(('127.0.0.1', {world.port})))\n"
                f"print(reached({abstract!r}))\n"
                "print(repr(open('/etc/resolv.conf').read()))\n"
                "print(os.readlink('/proc/self/ns/net'))\n"
                "own = socket.socket(socket.AF_UNIX); own.bind(b'\\0own'); own.listen()\n"
                "print(reached(b'\\0own'))\n"
                "print('HTTP_PROXY' in os.environ)\n"
            )
            interfaces, loopback, sockets, resolver, namespace, own, proxy = said.splitlines()
            assert interfaces == str(sorted(name for _, name in socket.if_nameindex()))
            assert loopback == "reached"
            assert resolver == repr(network_files()[2][1])
            assert namespace == os.readlink("/proc/self/ns/net")
            assert own == "reached"
            assert proxy == "False"
            if landlock.version() >= landlock.SCOPES_SOCKETS:
                assert sockets == "Operation not permitted"
                assert bench.network().facts()["problem"] is None
            else:
                assert "abstract" in bench.network().facts()["problem"]
            with pytest.raises(BadRequestError, match="the host's network"):
                await bench.network().allow(parse_rules(["x.org"]))
            with pytest.raises(BadRequestError, match="the host's network"):
                bench.network().turn_off()
            # One template is not another's.
            off = await bench.text(
                f"{OF_HOST}print(reached(('127.0.0.1', {world.port})))",
                env="python-off",
                session="b",
            )
            assert off == "Connection refused\n"


async def test_without_landlock_s_scope_abstract_sockets_of_the_host_are_open() -> None:
    """Landlock's scope is the only measure that closes them."""
    source = source_of("sandbox_agent")
    weakened = source.replace(b"        shut_abstract_sockets()\n", b"        pass\n", 1)
    assert weakened != source
    abstract = f"\0nsm-test-{os.urandom(8).hex()}".encode()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(abstract)
        listener.listen(5)
        rules = {"python": NetworkRule(mode="full")}
        launcher = new_launcher().with_agent(weakened)
        async with open_netbench(rules, launcher=launcher) as bench:
            assert await bench.text(f"{OF_HOST}print(reached({abstract!r}))") == "reached\n"


HOST = "host.nsm.internal"


class Files(SimpleHTTPRequestHandler):
    """Serves a directory, and says nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def site(tmp_path: Path) -> Generator[tuple[Path, str]]:
    """A directory, and the URL under which it is served on the host's loopback."""
    handler = partial(Files, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield tmp_path, f"http://{HOST}:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def said(bench: NetBench, code: str, *, absent: str = "not there: ") -> str:
    result = await bench.text(f"({code}) 2>&1", env="bash")
    if result.startswith(absent):
        pytest.skip(f"not here: {result.strip()}")
    return result


def rule(url: str) -> NetworkRule:
    return NetworkRule(mode="allow", allow=(url.removeprefix("http://"),))


def make_repository(directory: Path) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(directory)]
    for words in (
        ["init", "-q", "work"],
        ["-C", "work", "commit", "-q", "--allow-empty", "-m", "first"],
        ["clone", "-q", "--bare", "work", "bare.git"],
        ["-C", "bare.git", "update-server-info"],
    ):
        subprocess.run([*git, *words], check=True)


async def test_git(site: tuple[Path, str]) -> None:
    directory, url = site
    make_repository(directory)
    async with open_netbench({"bash": rule(url)}) as bench:
        found = await said(
            bench,
            "command -v git >/dev/null || { echo not there: git; exit; }; cd /tmp && "
            f"git clone -q {url}/bare.git c && git -C c log --format=%s; "
            "git clone -q http://other.test/bare.git d || :; "
            "git clone -q ssh://other.test/bare.git e || :",
        )
        first, *refused = found.splitlines()
        assert first == "first"
        assert "error: 403" in "".join(refused)
