"""Attempts that must fail in a fork; each succeeds in a weakened fork."""

from __future__ import annotations

from functools import partial

import pytest

from isolation.probe import Group, Probe
from isolation.probes import PROBES, by_weakness, groups_of, named, sharing
from isolation.rooms import HostRoom, Prober
from isolation.stage import Stage
from isolation.weaken import UNFILTERED_FORK, Weakness
from nsmd.model.values import Environment
from realjail import needs_bwrap

pytestmark = [
    pytest.mark.jail,
    needs_bwrap,
    pytest.mark.usefixtures("secret_in_our_environment"),
]

Known = dict[str, Environment]

forked = partial(HostRoom, kind="forked")


@pytest.mark.parametrize("probe", PROBES, ids=named)
def test_held(probe: Probe, untouched: Stage, known: Known, prober: Prober) -> None:
    prober.expect("HELD", forked(stage=untouched, known=known), probe, PROBES)


@pytest.mark.parametrize("probe", by_weakness("forked"), ids=named)
@pytest.mark.slow
def test_detects_success(probe: Probe, spoilt: Stage, known: Known, prober: Prober) -> None:
    room = forked(stage=spoilt, known=known, weakness=probe.weakness_of("forked"))
    prober.expect("BROKEN: ", room, probe, sharing("forked", probe))


OF_OTHERS = [probe for probe in PROBES if not probe.filtered]


@pytest.mark.parametrize("group", groups_of(OF_OTHERS))
def test_held_without_the_filter(
    group: Group, untouched: Stage, known: Known, prober: Prober
) -> None:
    room = forked(stage=untouched, known=known, weakness=UNFILTERED_FORK)
    prober.all_hold(room, OF_OTHERS, group)


TWICE = [
    pytest.param(probe, weakness, id=f"{probe.name}-{name}")
    for probe in PROBES
    for name, weakness in probe.fork_held_twice.items()
]


@pytest.mark.parametrize(("probe", "weakness"), TWICE)
def test_one_layer_is_enough(
    probe: Probe, weakness: Weakness, untouched: Stage, known: Known, prober: Prober
) -> None:
    room = forked(stage=untouched, known=known, weakness=weakness)
    prober.expect("HELD", room, probe, [probe])
