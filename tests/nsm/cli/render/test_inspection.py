"""A session's rules as text."""

from __future__ import annotations

from typing import Any

import pytest

import samples
from nsm.cli.render.inspection import inspection
from nsm.wire.inspection import Inspection
from nsm.wire.messages import read


def shown(wire: dict[str, Any]) -> str:
    return inspection(read(Inspection, wire), "/home/me")


def line(text: str, name: str) -> str:
    """Return the text beside a name."""
    (found,) = [each for each in text.splitlines() if each.split(" ")[0] == name]
    return found.removeprefix(name).strip()


def test_each_rule_has_its_line() -> None:
    text = shown(samples.inspection())
    assert "a fork of a template" in line(text, "jail")
    assert "user 65530, control group /nsm/s-1" in line(text, "jail")
    assert line(text, "network") == "off: nothing but its own loopback"
    assert line(text, "memory").startswith("512 MiB, kept by its control group; has ")
    assert line(text, "memory").endswith(", had 70.0 MiB")
    assert line(text, "processes").startswith("256, kept by the kernel's count")
    assert line(text, "rights").startswith("user 1000, capabilities: none, no new privileges")
    assert line(text, "variables") == "HOME TOKEN"
    rows = [each.split() for each in text.splitlines()]
    assert ["/project", "overlay", "copy-on-write", "-", "-", "~/words"] in rows
    assert ["/store", "binds", "(300)", "read-only", "-", "-", "-"] in rows
    assert ["/tmp", "tmpfs", "read-write", "256", "MiB", "32768", "-"] in rows
    assert "warning" not in text


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"mode": "allow", "allow": ["a.example", "*.b.example"]}, "to: a.example, *.b.example"),
        ({"mode": "allow", "allow": []}, "to: nothing"),
        ({"mode": "full", "allow": []}, "whatever the host reaches"),
        ({"mode": "newer"}, "newer"),
    ],
)
def test_networks(network: dict[str, Any], words: str) -> None:
    wire = samples.inspection(network=network) | {"network": None}
    assert words in line(shown(wire), "network")


def test_what_was_allowed_since_is_what_counts() -> None:
    now = {"mode": "allow", "allow": ["a.example"], "problem": None}
    assert "to: a.example" in line(shown(samples.inspection() | {"network": now}), "network")
    broken = {**now, "problem": "its agent cannot listen"}
    assert "its agent cannot" in line(shown(samples.inspection() | {"network": broken}), "network")


def test_a_contradiction_is_a_warning() -> None:
    wire = samples.inspection() | {"contradictions": ["System calls are not filtered\x1b."]}
    assert "warning: System calls are not filtered\\x1b." in shown(wire)


def test_an_older_artifact_is_said_to_be_one() -> None:
    assert "it knows alone" in shown(samples.inspection(complete=False))


def test_before_there_is_a_jail() -> None:
    wire = samples.inspection() | {"policy": None, "kernel": None}
    assert line(shown(wire), "jail") == "none yet"


def test_what_another_version_sends_does_not_break_it() -> None:
    odd: dict[str, Any] = {
        "limits": 3,
        "mounts": "none",
        "variables": None,
        "rights": [],
        "network": None,
    }
    assert line(shown(samples.inspection(**odd)), "descriptors") == "- of each process"


def test_less_of_the_processor_than_configured_is_said() -> None:
    wire = samples.inspection()
    limits = {**wire["policy"]["limits"], "cpu_weight": 100, "cpu_by": "cgroup"}
    wire = samples.inspection(limits=limits)
    wire["confinement"]["cpu_weight"] = 100
    assert line(shown(wire), "processor") == "weight 100, kept by its control group"
    wire["confinement"]["cpu_weight"] = 5
    assert line(shown(wire), "processor").endswith("; 5 while it works for long")
