"""Slow imports of the last sessions: few, bounded, and remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from control_bench import bench
from nsm.wire.environments import SlowImport
from nsmd.model.values import Artifact, Environment
from nsmd.telemetry.import_times import (
    LONGEST_S,
    MAX_ENVIRONMENTS,
    MAX_MODULES,
    SESSIONS,
    ImportTimes,
    open_import_times,
)

if TYPE_CHECKING:
    from pathlib import Path

    import trio

    from fakes import FakeAgent, FakeJail

SCIENCE = Environment(
    name="science",
    interpreter="python",
    program="/env/bin/python",
    agent_python="/env/bin/python",
    packages=("numpy", "pandas", "matplotlib"),
)


@pytest.fixture
def times(tmp_path: Path) -> ImportTimes:
    return ImportTimes(str(tmp_path / "imports.json"))


def names(times: ImportTimes, environment: Environment = SCIENCE) -> list[str]:
    return [each.module for each in times.suggestions(environment)]


def test_frequent_slow_imports_are_suggested(times: ImportTimes) -> None:
    for number in range(SESSIONS):
        imports = {"pandas": 0.25 if number < 9 else 0.75} if number % 2 else {}
        imports |= {"numpy": 0.1} if number % 3 else {}
        imports |= {"matplotlib.pyplot": 2.0} if number < 4 else {}
        times.add(SCIENCE, f"{number}", imports)
    assert times.suggestions(SCIENCE) == [
        SlowImport(module="pandas", seconds=0.75, sessions=10, of=20),
        SlowImport(module="numpy", seconds=0.1, sessions=13, of=20),
    ], "four of twenty is not often"


def test_an_import_is_suggested_after_three_sessions(times: ImportTimes) -> None:
    for number in range(2):
        times.add(SCIENCE, f"{number}", {"pandas": 0.5})
    assert names(times) == []
    times.add(SCIENCE, "1", {"pandas": 0.5})
    assert names(times) == [], "the same session twice"
    times.add(SCIENCE, "2", {"pandas": 0.5})
    assert names(times) == ["pandas"]


def test_the_last_sessions_count(times: ImportTimes) -> None:
    for number in range(SESSIONS):
        times.add(SCIENCE, f"{number}", {"pandas": 0.5})
    for number in range(SESSIONS):
        times.add(SCIENCE, f"later {number}", {})
    assert names(times) == []


def test_other_modules_or_another_preload_begin_anew(times: ImportTimes) -> None:
    for number in range(SESSIONS):
        times.add(SCIENCE, f"{number}", {"pandas": 0.5})
    assert names(times, replace(SCIENCE, preload=("pandas",))) == []
    assert names(times, replace(SCIENCE, source="another")) == []


@pytest.mark.parametrize(
    "environment",
    [
        replace(SCIENCE, interpreter="bash"),
        replace(SCIENCE, program="/project/.venv/bin/python"),
        replace(SCIENCE, artifact=Artifact(run="/nix/store/x/run", schema=1)),
    ],
)
def test_nothing_is_suggested_where_nothing_can_be_preloaded(
    times: ImportTimes, environment: Environment
) -> None:
    for number in range(SESSIONS):
        times.add(environment, f"{number}", {"pandas": 0.5})
    assert names(times, environment) == []


def test_hostile_reports_stay_small(times: ImportTimes) -> None:
    for number in range(5):
        times.add(SCIENCE, f"{number}", {"nonesuch": 1.0, "os": 9.0, "x.y": 1.0, "pandas": 1e9})
    assert times.suggestions(SCIENCE) == [
        SlowImport(module="pandas", seconds=LONGEST_S, sessions=5, of=5)
    ]
    flood = {f"numpy.x{number}": 1.0 for number in range(10 * MAX_MODULES)}
    unknown = replace(SCIENCE, name="artifact", packages=())
    for number in range(5):
        times.add(unknown, f"{number}", flood)
        times.add(unknown, f"{number}", {"; rm": 1.0, "\u0430": 1.0, "a" * 101: 1.0})
    assert len(names(times, unknown)) == 3
    for number in range(2 * MAX_ENVIRONMENTS):
        times.add(replace(SCIENCE, name=f"e{number}"), "a", {"pandas": 0.5})
    times.save()
    times.load()
    assert repr(times) == f"<ImportTimes of {MAX_ENVIRONMENTS} environments>"


def test_import_times_outlive_the_supervisor(times: ImportTimes, tmp_path: Path) -> None:
    for number in range(3):
        times.add(SCIENCE, f"{number}", {"pandas": 0.5})
    times.save()
    later = ImportTimes(str(tmp_path / "imports.json"))
    later.load()
    assert later.suggestions(SCIENCE) == times.suggestions(SCIENCE) != []
    later.add(SCIENCE, "3", {})
    assert later.suggestions(SCIENCE)[0].of == 4


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1, "environments": [{"name": 3}]}'])
def test_a_broken_file_does_no_harm(times: ImportTimes, tmp_path: Path, text: str) -> None:
    (tmp_path / "imports.json").write_text(text)
    times.load()
    assert names(times) == []


async def test_each_execution_is_noted(autojump_clock: trio.abc.Clock, tmp_path: Path) -> None:
    async def importing(agent: FakeAgent, jail: FakeJail) -> None:
        del jail
        await agent.be_ready()
        while (frame := await agent.receive())["type"] == "execute":
            slow = frame["code"] == "import pandas"
            await agent.answer(frame, imports={"pandas": 0.5} if slow else {})

    path = str(tmp_path / "imports.json")
    async with bench(importing) as it, open_import_times(path, it.run_service.events) as times:
        peer = await it.connect()
        for name in "abc":
            await peer.call("run", env="python", session=name, code="pass")
            await peer.call("run", env="python", session=name, code="import pandas")
        await peer.call("run", env="bash", session="d", code="import pandas")
        (session,) = [each for each in it.run_service.live_sessions() if each.name == "a"]
        environment = session.spec.environment
        assert times.suggestions(environment) == [
            SlowImport(module="pandas", seconds=0.5, sessions=3, of=3)
        ]
