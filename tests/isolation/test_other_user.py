"""The probes under a supervisor of an ordinary user, where root runs the tests.

Root's starts jails as another user, and everything else that is run here is root's. The other way
about there is nothing to do: an ordinary user's tests are of an ordinary user's supervisor.
"""

from __future__ import annotations

import ctypes
import json
import os
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

import pytest

from isolation.background import Background
from isolation.probe import Kind, Probe
from isolation.probes import PROBES
from isolation.rooms import HostRoom, Prober
from isolation.stage import Stage
from nsmd.jail import BwrapLauncher, program_code
from nsmd.jail.arguments import AGENT_PATH, TEMPLATE_PATH
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Environment
from realjail import BWRAP, needs_bwrap

pytestmark = [
    pytest.mark.slow,
    pytest.mark.jail,
    needs_bwrap,
    pytest.mark.usefixtures("secret_in_our_environment"),
    pytest.mark.root,
]

USER = DEFAULT_JAIL_UID
"""To whom the project and the key of the stage belong."""

PR_SET_DUMPABLE = 4

AGENT = program_code.ProgramCode("sandbox_agent", AGENT_PATH)
TEMPLATE = program_code.ProgramCode("sandbox_template", TEMPLATE_PATH)
"""Read and compiled by root: the other user may not be able to read this clone."""


class ReadyLauncher(BwrapLauncher):
    """A launcher that reads no file of this clone."""

    def __init__(self, agent: bytes | None) -> None:
        super().__init__(BWRAP, agent_source=agent, jail_uid=DEFAULT_JAIL_UID)
        self._agent_code = AGENT
        self._template_code = TEMPLATE


def verdicts_of(
    kind: Kind, stage: Stage, known: Mapping[str, Environment], probes: Sequence[Probe]
) -> dict[str, str]:
    """Run the probes in this process and collect their verdicts."""
    room = HostRoom(kind=kind, stage=stage, known=known, cold=ReadyLauncher)
    background = Background()
    try:
        prober = Prober(background)
        return {probe.name: prober.verdict(room, probe, probes) for probe in probes}
    finally:
        background.close()


def become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Else /proc/self is root's, as it is after every change of the user.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


@pytest.mark.parametrize("kind", ["cold", "forked"])
def test_held(kind: Kind, untouched: Stage, known: dict[str, Environment]) -> None:
    # What is imported or compiled late is so now, while its files can be read.
    some = {(probe.interpreter, probe.place): probe for probe in PROBES}
    assert "HELD" in verdicts_of(kind, untouched, known, list(some.values())).values()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _tell(writer, kind, untouched, known)
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, text
    told = json.loads(text)
    assert {name: words for name, words in told.items() if words.startswith("BROKEN: ")} == {}
    assert sum(words == "HELD" for words in told.values()) > len(told) // 2


def _tell(writer: int, kind: Kind, stage: Stage, known: dict[str, Environment]) -> NoReturn:
    with open(writer, "w") as file:
        try:
            become(USER)
            assert os.geteuid() == USER
            file.write(json.dumps(verdicts_of(kind, stage, known, PROBES)))
            file.flush()
        except BaseException:  # noqa: BLE001  # whoever reads it raises
            file.write(traceback.format_exc())
            file.flush()
            os._exit(1)
    os._exit(0)
