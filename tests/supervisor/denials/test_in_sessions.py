"""Notes of results in real sessions: for code, and for hosts that the proxy refused."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from denial_notes import HOST_PROJECT, LIMITS, MEMORY_MB, SIZES, note
from netbench import Names, open_netbench
from nsmd.agent_link.link import AgentLink
from nsmd.denials.explaining import explain
from nsmd.denials.wording import Circumstances
from nsmd.model.host_rules import parse_rule
from nsmd.model.values import JailSpec, NetworkRule, Outcome
from realjail import (
    ANSWER_TIMEOUT_S,
    LiveSession,
    environments,
    launched,
    mount_of,
    needs_bwrap,
    new_launcher,
    open_directory,
)

if TYPE_CHECKING:
    from nsmd.jail import Jail

pytestmark = [needs_bwrap, pytest.mark.jail]


CASES = tomllib.loads((Path(__file__).parent / "live.toml").read_text())["case"]

LOG = """\
touch: cannot touch '/project/x': Read-only file system
OSError: [Errno 30] Read-only file system: '/project/x'
curl: (6) Could not resolve host: example.org
bash: connect: Network is unreachable
bash: fork: Resource temporarily unavailable
cat: write error: No space left on device
MemoryError
"""


@pytest.mark.parametrize(
    "name", ["python", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bash", "node"))]
)
async def test_code_that_a_rule_stopped_is_explained(name: str) -> None:
    environment = replace(environments()[name], memory_mb=MEMORY_MB)
    launcher = new_launcher(LIMITS)
    with open_directory() as directory:
        (directory / "a.txt").write_text("a\n")
        (directory / "a.txt").chmod(0o666)  # whoever asks, only the mount is in the way
        directory.chmod(0o777)
        (directory / "log.txt").write_text(LOG)
        spec = JailSpec(environment=environment, project=mount_of(directory), sizes=SIZES)
        policy = launcher.policy(spec, forked=False)
        wrong: list[str] = []
        async with launched(launcher, spec) as jail, trio.open_nursery() as nursery:
            session = await limited(jail, nursery, spec)
            for case in CASES:
                if case["interpreter"] != name or missing(case):
                    continue
                code = case["code"].replace("HOST_PROJECT", str(directory))
                outcome = await session.run(code)
                said = explain(policy, outcome, (), Circumstances(code=code, project=spec.project))
                expected = expectation(case, str(directory))
                if said != expected:
                    wrong.append(report(code, said, expected, outcome))
            nursery.cancel_scope.cancel()
        assert not wrong, "\n\n".join(wrong)


async def limited(jail: Jail, nursery: trio.Nursery, spec: JailSpec) -> LiveSession:
    """A session whose agent has been told its limits, as by the supervisor."""
    link = AgentLink(jail.socket, nursery)
    with trio.fail_after(ANSWER_TIMEOUT_S):
        await link.handshake(LIMITS.of_interpreters(spec.environment))
    return LiveSession(jail, link, spec.environment.interpreter)


def missing(case: dict[str, Any]) -> bool:
    """Return whether this machine lacks the program of the case."""
    return "needs" in case and shutil.which(case["needs"], path="/usr/bin") is None


def expectation(case: dict[str, Any], directory: str) -> tuple[str, ...]:
    if "note" not in case:
        return ()
    return (note(case["note"]).replace(HOST_PROJECT, directory),)


def report(code: str, said: tuple[str, ...], expected: tuple[str, ...], outcome: Outcome) -> str:
    return (
        f"{code}\n  says     {said}\n  expected {expected}\n  exit {outcome.exit_code}"
        f" {outcome.restart_reason}\n  stdout {outcome.stdout!r:.1500}"
        f"\n  stderr {outcome.stderr!r:.1500}\n  displays {outcome.displays!r:.500}"
    )


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
            f"{SOME}example.org:80 (no public address)",
        )
        assert await notes("fetch('https://nothing.example.com')") == ()  # nobody knows that name

        await bench.network().allow([parse_rule("pypi.example")])
        (more,) = await notes("fetch('https://other.example')")
        assert "*.example.com:443, pypi.example; refused: other.example:443" in more
        bench.network().turn_off()
        assert await notes("fetch('https://pypi.example')") == (
            "policy: network is off; only this session's own localhost can be reached",
        )
