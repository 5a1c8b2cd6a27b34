"""Output of `nsm box --list` for the supervisor's answer."""

from __future__ import annotations

from nsm.wire.host import BoxRow
from nsmbox.cli import listing

OFF = BoxRow(
    id="1b85b408",
    pid=10459,
    profile="claude",
    directory="/home/ada/project",
    scope="box:/home/ada/project#01234567",
    project="/home/ada/project",
    project_problem=None,
    age_s=75.2,
    network="off",
    allow=(),
    network_problem=None,
    connections=0,
    counters={"sent_bytes": 0, "received_bytes": 0},
)


def test_each_box_is_a_line() -> None:
    allow = OFF._replace(network="allow", allow=("a.example",))
    boxes = [
        OFF,
        OFF._replace(network="full", programs=("deploy", "restart-db")),
        allow._replace(allow=("a.example", "*.b.example")),
        allow._replace(counters={"allowed": 3, "not-allowed": 2, "port": 1}),
        allow._replace(network_problem="there is no proxy: it did not come with the answer"),
        OFF._replace(directory="/srv/\x1b[31mred\nline"),
    ]
    text = listing.rows(boxes, "/home/ada")
    assert [line.split(maxsplit=3)[:3] for line in text.splitlines()] == [
        ["ID", "PID", "PROFILE"],
        *([["1b85b408", "10459", "claude"]] * 6),
    ]
    assert [line[26:].split("  ")[0] for line in text.splitlines()[1:]] == [
        "off",
        "full",
        "a.example,*.b.example",
        "a.example (3 refused)",
        "a.example (there is no proxy: it did not come with the answer)",
        "off",
    ]
    assert [" deploy,restart-db " in line for line in text.splitlines()].index(True) == 2
    assert "1m15s  ~/project" in text
    assert "\x1b" not in text
