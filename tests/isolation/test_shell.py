"""Finding 9: `set -x` and a DEBUG trap show code whatever the shell is told to run."""

from __future__ import annotations

import re

import pytest

from nsmd.jail import BwrapLauncher
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Environment
from realjail import (
    BWRAP,
    STAY,
    environments,
    jail_spec,
    launched,
    needs_bwrap,
    open_session,
    read_all,
)

pytestmark = [pytest.mark.jail, needs_bwrap]

TRACING = """
PS4='+$LINENO:$BASH_SOURCE:'
set -xvT; trap 'echo "DEBUG $BASH_COMMAND"' DEBUG; trap 'echo "RETURN $BASH_COMMAND"' RETURN
trap 'echo "ERR $BASH_COMMAND"' ERR; trap 'echo "EXIT $BASH_COMMAND"' EXIT
"""

NAIVE = """
import os, secrets, subprocess, sys
nonce = secrets.token_hex(16)
script = {tracing!r} + "echo two\\necho done-" + nonce + ":$?\\n"
told = subprocess.run(["/bin/bash"], input=script, capture_output=True, text=True)
# Without the marker's own line, as such a wrapper would cut it.
print(told.stdout.replace("\\ndone-" + nonce, ""), told.stderr)
"""


def markers(text: str) -> list[str]:
    """Find the texts that only the shell's driver should know."""
    return re.findall(r"[0-9a-f]{24,}|nsm-\w+|\S+ @ \d+", text)


@pytest.fixture(scope="module")
def bash() -> Environment:
    return environments()["bash"]


@pytest.mark.parametrize(
    "before",
    [
        "",
        pytest.param(
            "exec 9>&2; BASH_XTRACEFD=9",
            marks=pytest.mark.xfail(
                strict=True,
                reason="the trace of a DEBUG trap for the driver's line has a descriptor of its "
                "own; the execution's number is shown, which is not a secret",
            ),
        ),
    ],
    ids=["plain", "own descriptor"],
)
async def test_traces_show_no_marker(before: str, bash: Environment) -> None:
    async with open_session(bash) as session:
        said = ""
        for code in (
            before,
            TRACING,
            "echo two",
            "false",
            "set +xv; trap - DEBUG RETURN ERR; echo end",
        ):
            outcome = await session.run(code)
            said += outcome.stdout + outcome.stderr
        assert "two" in said
        assert "DEBUG" in said
        assert markers(said) == []
        assert outcome.stdout.endswith("end\n")
        # What only traced has not broken anything.
        quiet = await session.run("echo quiet")
        assert (quiet.stdout, quiet.exit_code) == ("quiet\n", 0)


async def test_markers_are_seen_where_a_shell_is_fed_with_them(bash: Environment) -> None:
    agent = (NAIVE.format(tracing=TRACING) + STAY).encode()
    launcher = BwrapLauncher(BWRAP, DEFAULT_JAIL_UID, agent_source=agent)
    async with launched(launcher, jail_spec(bash)) as jail:
        assert markers(await read_all(jail))
