"""Code in real jails, through the proxy, to a server on the host."""

from __future__ import annotations

import pytest

from netbench import Names, open_netbench, open_world
from nsmd.values import NetworkRule
from realjail import needs_bwrap

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


@pytest.mark.parametrize("kind", ["forked", "cold"])
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
