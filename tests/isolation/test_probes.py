"""Attempts that must fail in a session; each succeeds in a weakened one.

Both kinds of session: in a jail of its own, and as a fork of a template.
"""

from __future__ import annotations

from typing import get_args

import pytest

from isolation.probe import Group, Kind, Probe
from isolation.probes import ALL, PROBES, by_weakness, groups_of, sharing
from isolation.rooms import HostRoom, Prober
from isolation.stage import Stage
from isolation.weaken import UNFILTERED_FORK, Weakness
from nsmd.model.values import Environment
from realjail import needs_bwrap

pytestmark = [pytest.mark.jail, needs_bwrap, pytest.mark.usefixtures("secret_in_our_environment")]

KINDS: tuple[Kind, ...] = get_args(Kind)

Known = dict[str, Environment]


@pytest.mark.parametrize(
    ("kind", "probe"),
    [pytest.param(k, probe, id=f"{k}-{probe.name}") for k in KINDS for probe in PROBES],
)
def test_held(kind: Kind, probe: Probe, untouched: Stage, known: Known, prober: Prober) -> None:
    prober.expect("HELD", HostRoom(kind=kind, stage=untouched, known=known), probe, PROBES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "probe"),
    [pytest.param(k, probe, id=f"{k}-{probe.name}") for k in KINDS for probe in by_weakness(k)],
)
def test_detects_success(
    kind: Kind, probe: Probe, spoilt: Stage, known: Known, prober: Prober
) -> None:
    weakness = probe.weakness_of(kind)
    room = HostRoom(kind=kind, stage=spoilt, known=known, weakness=weakness)
    prober.expect("BROKEN: ", room, probe, sharing(kind, probe))


@pytest.mark.parametrize(
    ("kind", "probe", "weakness"),
    [
        pytest.param(kind, probe, weakness, id=f"{kind}-{probe.name}-{name}")
        for kind in KINDS
        for probe in PROBES
        for name, weakness in probe.layers(kind).items()
    ],
)
def test_one_layer_is_enough(
    kind: Kind, probe: Probe, weakness: Weakness, untouched: Stage, known: Known, prober: Prober
) -> None:
    room = HostRoom(kind=kind, stage=untouched, known=known, weakness=weakness)
    prober.expect("HELD", room, probe, [probe])


OF_OTHERS = [probe for probe in PROBES if not probe.filtered]


@pytest.mark.parametrize("group", groups_of(OF_OTHERS))
def test_held_without_the_filter(
    group: Group, untouched: Stage, known: Known, prober: Prober
) -> None:
    room = HostRoom(kind="forked", stage=untouched, known=known, weakness=UNFILTERED_FORK)
    prober.all_hold(room, OF_OTHERS, group)


def test_no_two_probes_are_the_same() -> None:
    assert len({probe.name for probe in ALL}) == len({probe.code for probe in ALL}) == len(ALL)
