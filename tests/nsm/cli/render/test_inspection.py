"""A session's rules as text."""

from __future__ import annotations

from typing import Any

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


def test_a_contradiction_is_a_warning() -> None:
    wire = samples.inspection() | {"contradictions": ["System calls are not filtered\x1b."]}
    assert "warning: System calls are not filtered\\x1b." in shown(wire)


def test_what_another_version_sends_does_not_break_it() -> None:
    odd: dict[str, Any] = {
        "limits": 3,
        "mounts": "none",
        "variables": None,
        "rights": [],
        "network": None,
    }
    assert line(shown(samples.inspection(**odd)), "descriptors") == "- of each process"
