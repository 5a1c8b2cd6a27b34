"""Rendering: values to text, and nothing that a terminal obeys."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from nsm.checks import HostCheck, render_text
from nsm.cli.render import formats
from nsm.cli.render.environments import environments_table
from nsm.cli.render.inspection import inspection
from nsm.cli.render.results import run_notes
from nsm.cli.render.sessions import ended_table, sessions_table
from nsm.cli.render.supervisor import pool_table, status_lines, times_tables
from nsm.wire.code import RunResult
from nsm.wire.environments import EnvironmentRow
from nsm.wire.inspection import Inspection
from nsm.wire.messages import read
from nsm.wire.sessions import SessionRow
from nsm.wire.status import read_status
from nsm.wire.telemetry import PoolReport, Stats
from nsm.wire.transcripts import EndedRow


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain ü 日本 🎈", "plain ü 日本 🎈"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("\ufeff\u200b\u2028", "\\ufeff\\u200b\\u2028"),
        ("\udc80", "\\udc80"),
    ],
)
def test_characters_that_drive_a_terminal_are_made_visible(text: str, seen: str) -> None:
    assert formats.visible(text) == seen


def rows(*changes: dict[str, Any]) -> list[SessionRow]:
    return [read(SessionRow, samples.session_row(**change)) for change in changes]


@pytest.mark.parametrize(
    ("path", "seen"),
    [("/home/u", "~"), ("/home/u/x", "~/x"), ("/home/user", "/home/user"), ("/", "/")],
)
def test_home_is_abbreviated_by_whole_names(path: str, seen: str) -> None:
    (line,) = sessions_table(rows({"project": path}), "/home/u").splitlines()[1:]
    assert f" {seen} " in line


def test_wide_and_combining_characters_keep_columns_aligned() -> None:
    table = formats.table(["A", "B"], [["日本", "x"], ["e\u0301", "y"], ["long", "z"]])
    assert table.splitlines() == ["A     B", "日本  x", "e\u0301     y", "long  z"]


@given(st.lists(st.text(max_size=8), min_size=1, max_size=6))
def test_a_table_has_one_printable_line_a_row(names: list[str]) -> None:
    table = sessions_table(rows(*({"name": name, "project": name} for name in names)), "/h")
    lines = table.split("\n")
    assert len(lines) == len(names) + 1
    assert all(line.isprintable() for line in lines)


def test_status_tells_what_is_wrong_beside_each_part() -> None:
    answer = samples.status(
        jail={"kind": "bubblewrap", "uid": 7, "note": "since root is\nno jailer"}
    )
    text = status_lines(read_status(answer))
    for told in (
        "0.1.0, process 4711, up 3s",
        "jails       bubblewrap as user 7\n            since root is\\nno jailer",
        "memory by watchdog, processes by rlimit, cpu by none",
        "outlive the supervisor for 10 minutes",
        "has lost 3 lines, and is losing more: No space left on device",
        "files with mistakes: 1; see `nsm bridge check`",
        "connections: 2 of 64; no token\n            http-token is gone",
    ):
        assert told in text
    taken = answer["http"] | {"url": "", "problem": "127.0.0.1:7643 cannot be listened at"}
    assert status_lines(read_status(answer | {"http": taken})).splitlines()[-2:] == [
        "http        not served",
        "            127.0.0.1:7643 cannot be listened at",
    ]
    off = status_lines(read_status(answer | {"http": taken | {"enabled": False}}))
    assert "http" not in off.split()


def notes(
    *, fresh_name: bool = False, left_out: dict[str, int] | None = None, **changes: Any
) -> str:
    result = read(RunResult, samples.run_result(**changes))
    return "\n".join(run_notes(result, fresh_name=fresh_name, left_out=left_out or {}))


ONE_SHOT = {"id": "s", "name": None, "created": True, "replaced": None}
SESSION = {"id": "s", "name": "a", "created": True, "replaced": None}
TRUNCATED = {
    "stdout": {
        "omitted_bytes": 123456,
        "file": "/workspace/.nsm/1.out",
        "total_bytes": 200_000,
        "file_bytes": 200_000,
    }
}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, ""),
        (
            {"session": {**SESSION, "replaced": "ended 12 min ago (idle timeout)"}},
            "the earlier one ended 12 min ago (idle timeout); variables and /workspace were lost",
        ),
        ({"session": SESSION, "fresh_name": True}, "the session is a; `-s a` goes on in it"),
        ({"clamped_from_s": 60.0}, "the limit is 30 s, not the 60 s asked for"),
        ({"waited_s": 75}, "waited 1m15s for other executions of the session"),
        ({"timed_out": True}, "timed out after 30 s"),
        (
            {"interpreter_restarted": True, "restart_reason": "signal 9"},
            "the interpreter was restarted (signal 9); its variables were lost",
        ),
        ({"interpreter_restarted": True, "session": ONE_SHOT}, ""),
        (
            {"truncated": TRUNCATED, "left_out": {"stdout": 99}, "session": SESSION},
            "99 bytes of stdout left out; all of it is in /workspace/.nsm/1.out of the session",
        ),
        (
            {"truncated": TRUNCATED, "left_out": {"stdout": 123456}, "session": ONE_SHOT},
            "121 KiB of stdout left out; with a session (-s NAME) up to 64 MiB are kept in a file",
        ),
        ({"notes": ["policy: network is off"]}, "policy: network is off"),
        ({"interpreter_restarted": True, "restart_reason": "\x1b[2J"}, "restarted (\\x1b[2J)"),
    ],
)
def test_notes_about_a_run(changes: dict[str, Any], text: str) -> None:
    assert text in notes(**changes)
    assert bool(text) == bool(notes(**changes))


# A session's rules as text.


def shown(wire: dict[str, Any]) -> str:
    return inspection(read(Inspection, wire), "/home/me")


def line(text: str, name: str) -> str:
    """Return the text beside a name."""
    (found,) = [each for each in text.splitlines() if each.split(" ")[0] == name]
    return found.removeprefix(name).strip()


def test_an_inspection_by_another_version_is_shown() -> None:
    odd: dict[str, Any] = {
        "limits": 3,
        "mounts": "none",
        "variables": None,
        "rights": [],
        "network": None,
    }
    assert line(shown(samples.inspection(**odd)), "descriptors") == "- of each process"


# Tables fit a terminal of 80 columns, however long names and paths are.


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
def test_a_pipe_gets_whole_tables(table: str) -> None:
    text = tables(None)[table]
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert "a-project-with-a-long-name" in text
