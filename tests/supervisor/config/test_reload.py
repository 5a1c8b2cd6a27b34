"""Changes of the configuration: which hold at once, which wait, and mistakes, which change
nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from nsmd.config.config_file import parse
from nsmd.config.reload import Reconfiguration, compare, merge
from nsmd.model.events import Events, SupervisorEvent
from nsmd.model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsmd.model.values import Environment


def settings(text: str) -> Settings:
    return parse(text.encode(), "config.toml")


def told(old: str, new: str) -> list[tuple[str, str, str, bool]]:
    changes = compare(settings(old), settings(new))
    return [(change.key, change.old, change.new, change.applied) for change in changes]


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("", "", []),
        ("", "[pool]\nmax_spares = 4", [("pool.max_spares", "16", "4", True)]),
        (
            "[defaults]\nprocesses = 99\nmemory_mb = 64",
            "",
            [("defaults.memory_mb", "64", "512", True), ("defaults.processes", "99", "256", False)],
        ),
        (
            '[project]\npath = "/a"',
            '[project]\nmode = "overlay"\ninherit_env = { vars = ["A"] }',
            [
                ("project.path", '"/a"', "none", True),
                ("project.mode", '"readonly"', '"overlay"', True),
                ("project.inherit_env.vars", "[]", '["A"]', False),
            ],
        ),
        (
            '[environments.bash]\nenv = { KEY = "old secret" }',
            '[environments.bash]\nenv = { KEY = "new secret" }\nnetwork = ["a.org"]',
            [
                ("environments.bash.network", '"off"', '["a.org"]', True),
                ("environments.bash.env", "(not shown)", "(not shown)", True),
            ],
        ),
    ],
)
def test_a_comparison_names_each_changed_key(
    old: str, new: str, changes: list[tuple[str, str, str, bool]]
) -> None:
    assert told(old, new) == changes


def test_merged_settings_differ_from_the_wanted_ones_in_what_waits() -> None:
    old = settings('[defaults]\nprocesses = 99\n[environments.x]\nflake = "path:/a#b"')
    new = settings(
        "[defaults]\nmemory_mb = 64\n[nix]\nbuild_timeout_seconds = 5\n[drain]\n"
        "timeout_seconds = 3\n[environments.bash]\ntimeout_seconds = 5"
    )
    merged = merge(old, new)
    assert (merged.defaults.processes, merged.defaults.memory_mb) == (99, 64)
    assert merged.drain.timeout_seconds == 3
    assert merged.nix == Settings().nix
    assert set(merged.environments) == {"x", "bash"}
    assert [change.key for change in compare(merged, new)] == [
        change.key for change in compare(old, new) if not change.applied
    ]


class Bench:
    """A configuration whose file is `wanted`."""

    def __init__(self) -> None:
        self.wanted: tuple[Settings | None, Sequence[str]] = (Settings(), [])
        self.applied: list[Settings] = []
        self.happened: list[dict[str, Any]] = []
        events = Events()
        events.subscribe(self._note)
        self.it = Reconfiguration(
            Settings(),
            load=lambda: self.wanted,
            find_environments=self._find,
            apply=self._apply,
            events=events,
        )

    def _find(self, wanted: Settings) -> list[Environment]:
        assert wanted is not self.it.settings
        return []

    async def _apply(self, wanted: Settings, environments: Sequence[Environment]) -> None:
        assert environments == []
        self.applied.append(wanted)

    def _note(self, event: SupervisorEvent) -> None:
        assert event.kind == "configuration_reloaded"
        self.happened.append(dict(event.facts))


async def test_a_reload_applies_what_it_can(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.wanted = settings("[pool]\nmax_spares = 4\n[defaults]\nprocesses = 99"), []
    answer = await bench.it.reload("SIGHUP")
    assert [(change.key, change.applied) for change in answer.changes] == [
        ("defaults.processes", False),
        ("pool.max_spares", True),
    ]
    (applied,) = bench.applied
    assert applied is bench.it.settings
    assert (applied.pool.max_spares, applied.defaults.processes) == (4, 256)
    waiting = ["defaults.processes"]
    assert bench.happened == [
        {"asked_by": "SIGHUP", "applied": ["pool.max_spares"], "waiting": waiting}
    ]
    assert "configuration: pool.max_spares: 16 -> 4" in caplog.messages
    assert "configuration: defaults.processes: 256 -> 99, which holds after `nsm reload`" in (
        caplog.messages
    )
    # What waits is told again, and applied never.
    again = await bench.it.reload("nsm")
    assert [change.key for change in again.changes] == waiting
    assert len(bench.applied) == 1


async def test_a_mistake_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.wanted = None, ["config.toml: pool.max_spares: found -1", "config.toml: x: unknown key"]
    before = bench.it.settings
    answer = await bench.it.reload("SIGHUP")
    assert answer.to_wire() == {"changes": [], "problems": bench.wanted[1]}
    assert bench.applied == []
    assert bench.it.settings is before
    assert bench.happened == [{"asked_by": "SIGHUP", "problems": 2}]
    assert set(bench.wanted[1]) < set(caplog.messages)
