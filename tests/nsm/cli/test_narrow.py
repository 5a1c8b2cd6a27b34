"""Output for people fits a terminal of 80 columns, however long names and paths are."""

from __future__ import annotations

import pytest

import samples
from nsm.checks import HostCheck, render_text
from nsm.cli.render import formats
from nsm.cli.render.environments import environments_table
from nsm.cli.render.sessions import ended_table, sessions_table
from nsm.cli.render.supervisor import pool_table, times_tables
from nsm.wire.environments import EnvironmentRow
from nsm.wire.messages import read
from nsm.wire.sessions import SessionRow
from nsm.wire.telemetry import PoolReport, Stats
from nsm.wire.transcripts import EndedRow

PATH = "/home/ada/work/customers/2026/a-project-with-a-long-name/sources"
WIDE = "\u65e5\u672c\u8a9e" * 12


def sessions() -> list[SessionRow]:
    made = [
        samples.session_row(),
        samples.session_row(
            name="a-session-with-quite-a-long-name-of-its-own",
            env="data-science-2026",
            client="claude-code",
            project=PATH,
            cpu_s=86399.0,
            memory_bytes=10 << 30,
            age_s=1e7,
            idle_s=1e7,
            executions=123456,
        ),
        samples.session_row(name=WIDE, project=f"/home/ada/{WIDE}"),
    ]
    return [read(SessionRow, row) for row in made]


def tables(width: int | None) -> dict[str, str]:
    pool = samples.pool()
    pool["kinds"][0] |= {"env": "data-science-2026", "project": PATH, "why": "calls came " * 20}
    environments = [
        samples.environment_row(),
        samples.environment_row(name="data-science-2026", source=PATH, preload=["numpy"] * 30),
        samples.environment_row(available=False, problem="it cannot be used: " * 9, source=WIDE),
    ]
    ended = samples.ended_row(name="x" * 64, reason="ended as it was idle for longer " * 3)
    return {
        "ps": sessions_table(sessions(), "/home/ada", width),
        "ended": ended_table([read(EndedRow, ended)], width),
        "envs": environments_table(
            [read(EnvironmentRow, row) for row in environments], "/home/ada", width
        ),
        "pool": pool_table(read(PoolReport, pool), "/home/ada", width),
        "stats": times_tables(read(Stats, samples.stats()), width),
        "doctor": render_text(
            [
                HostCheck(
                    name="sandboxes",
                    status="warn",
                    detail="/home/ada/work is wrong " * 20,
                    fix="Do this, " * 20,
                )
            ],
            width,
        ),
    }


@pytest.mark.parametrize("width", [80, 100, 132])
@pytest.mark.parametrize("table", list(tables(None)))
def test_a_table_fits_the_terminal(table: str, width: int) -> None:
    text = tables(width)[table]
    assert max(map(formats.columns, text.splitlines())) <= width, text


@pytest.mark.parametrize("table", ["ps", "envs", "pool"])
def test_what_is_no_terminal_gets_all(table: str) -> None:
    text = tables(None)[table]
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert "a-project-with-a-long-name" in text


def test_what_a_person_looks_for_first_stays() -> None:
    lines = tables(80)["ps"].splitlines()
    assert lines[0].split()[:5] == ["ID", "NAME", "ENV", "PROJECT", "STATE"]
    assert "\N{HORIZONTAL ELLIPSIS}-name/sources" in lines[2], "the end of a path tells more"
    assert lines[2].split()[1].startswith("a-session-w")
    assert "calls came" in tables(80)["pool"]
