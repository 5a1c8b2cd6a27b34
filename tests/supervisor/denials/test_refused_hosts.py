"""Notes about hosts that the proxy refused: those of their own execution, and the reason."""

from __future__ import annotations

import pytest

from netbench import Names, open_netbench
from nsmd.model.host_rules import parse_rule
from nsmd.model.values import NetworkRule
from realjail import needs_bwrap

pytestmark = [needs_bwrap, pytest.mark.jail]

FETCH = """
import urllib.request
def fetch(*urls):
    for url in urls:
        try:
            urllib.request.urlopen(url)
        except OSError:
            pass  # and says nothing of it
"""

SOME = "policy: network is limited to example.org, *.example.com:443; refused: "


async def test_refused_hosts_are_told_with_the_execution_that_asked_for_them() -> None:
    rule = NetworkRule(mode="allow", allow=("example.org", "*.example.com:443"))
    names = Names({"example.org": ["127.0.0.1"]})
    async with open_netbench({"python": rule}, names=names) as bench:

        async def notes(code: str) -> tuple[str, ...]:
            return (await bench.run(code)).notes

        assert await notes(FETCH) == ()
        twice = "fetch('https://pypi.example', 'https://pypi.example', 'http://[2001:db8::1]:8080')"
        assert await notes(twice) == (f"{SOME}pypi.example:443, [2001:db8::1]:8080",)
        assert await notes("1 + 1") == ()
        assert await notes("fetch('http://www.example.com')") == (
            f"{SOME}www.example.com:80 (not on that port)",
        )
        assert await notes("fetch('http://example.org')") == (
            f"{SOME}example.org:80 (not a public address)",
        )
        assert await notes("fetch('https://nothing.example.com')") == ()  # nobody knows that name

        await bench.network().allow([parse_rule("pypi.example")])
        (more,) = await notes("fetch('https://other.example')")
        assert "*.example.com:443, pypi.example; refused: other.example:443" in more
        bench.network().turn_off()
        assert await notes("fetch('https://pypi.example')") == (
            "policy: network is off; only this session's own localhost can be reached",
        )
