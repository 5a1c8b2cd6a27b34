"""Attempts that must fail in a session; each succeeds in a weakened jail.

Sessions in jails of their own; forks are in `test_forked_probes.py`.
"""

from __future__ import annotations

from functools import partial

import pytest

from isolation.probe import Probe
from isolation.probes import ALL, PROBES, by_weakness, named, sharing
from isolation.rooms import HostRoom, Prober
from isolation.stage import Stage
from isolation.weaken import Weakness
from nsmd.model.values import Environment
from realjail import needs_bwrap

pytestmark = [
    pytest.mark.jail,
    needs_bwrap,
    pytest.mark.usefixtures("secret_in_our_environment"),
]

Known = dict[str, Environment]

cold = partial(HostRoom, kind="cold")


@pytest.mark.parametrize("probe", PROBES, ids=named)
def test_held(probe: Probe, untouched: Stage, known: Known, prober: Prober) -> None:
    prober.expect("HELD", cold(stage=untouched, known=known), probe, PROBES)


@pytest.mark.parametrize("probe", by_weakness("cold"), ids=named)
@pytest.mark.slow
def test_detects_success(probe: Probe, spoilt: Stage, known: Known, prober: Prober) -> None:
    room = cold(stage=spoilt, known=known, weakness=probe.weakness_of("cold"))
    prober.expect("BROKEN: ", room, probe, sharing("cold", probe))


TWICE = [
    pytest.param(probe, weakness, id=f"{probe.name}-{name}")
    for probe in PROBES
    for name, weakness in probe.held_twice.items()
]


@pytest.mark.parametrize(("probe", "weakness"), TWICE)
def test_one_layer_is_enough(
    probe: Probe, weakness: Weakness, untouched: Stage, known: Known, prober: Prober
) -> None:
    room = cold(stage=untouched, known=known, weakness=weakness)
    prober.expect("HELD", room, probe, [probe])


def test_names_are_unique() -> None:
    assert len({probe.name for probe in ALL}) == len(ALL)


def test_no_two_probes_have_the_same_code() -> None:
    assert len({probe.code for probe in ALL}) == len(ALL)
