"""Templates that fork themselves, while their processes are killed under load."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import many_forkers
from e2e_support import Supervisor, supervisor
from soak.household import Household
from soak.load import Load, scaled

pytestmark = pytest.mark.jail

SEED = int(os.environ.get("SOAK_SEED") or "19")
NAMED = 6
LOOKS_S = 90.0
"""Time for another forker to appear. After two templates that ended at once, sessions start in
jails of their own for 30 s.
"""

CONFIG = """
[pool]
max_spares = 4
"""


class Named:
    """Sessions with a name, and what each has to answer next."""

    def __init__(self, it: Supervisor) -> None:
        self._it = it
        self._counts = [0] * NAMED

    def turn(self, number: int) -> None:
        """Use one of them."""
        env = ("python", "bash")[number % 2]
        code = {"python": "n = globals().get('n', 0) + 1; print(n)", "bash": "echo $((++n))"}[env]
        with self._it.client() as client:
            result = client.run(code, env=env, session=f"named-{number}")
        self._counts[number] += 1
        assert result.stdout == f"{self._counts[number]}\n", result
        assert result.session.created == (self._counts[number] == 1)


@pytest.mark.slow  # tests of templates have single kills
def test_a_forker_may_be_killed() -> None:
    kills = scaled(200)
    faulthandler.cancel_dump_traceback_later()  # pytest's; this takes its time
    chance = random.Random(SEED)
    within = (sys.executable, "-P", many_forkers.__file__)
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, Household() as household:
        with supervisor(Path(path), config=CONFIG, within=within) as it:
            named = Named(it)
            for number in range(NAMED):
                named.turn(number)
            seen: set[int] = set()
            with Load(it.socket, threads=4) as load:
                for number in range(kills):
                    seen |= kill_one(household, chance, first=number % 8 == 3)
                    named.turn(number % NAMED)
            for number in range(NAMED):
                named.turn(number)
            print(f"{kills} kills, {len(seen)} forkers, {dict(load.counts)}")
            assert load.counts["ok"] > kills
            with it.client() as client:
                client.kill_all()
        assert not household.wait_empty(30)


def kill_one(household: Household, chance: random.Random, *, first: bool) -> set[int]:
    """Kill one of several forkers; returns all that there were.

    Args:
        first: the template itself, with which the others end.
    """
    deadline_s = time.monotonic() + LOOKS_S
    while True:
        found = set(household.members().templates)
        others = {p.pid for p in household.processes() if p.pid in found and p.parent in found}
        if others:
            break
        assert time.monotonic() < deadline_s, "no template has forked itself"
        threading.Event().wait(0.01)
    threading.Event().wait(chance.uniform(0, 0.05))
    with suppress(ProcessLookupError):
        os.kill(chance.choice(sorted(found - others if first else others)), signal.SIGKILL)
    return found
