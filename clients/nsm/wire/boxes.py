"""Boxes that the supervisor serves sockets for, as they go over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nsm.wire.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


class BoxRow(NamedTuple):
    """One box.

    Attributes:
        id: 8 hex digits.
        pid: of its first process on the host.
        profile: name of what it was made by.
        directory: the agent's working directory.
        scope: of the sessions in which its programs run code.
        project: directory that these sessions see; None if none, for `project_problem`.
        age_s: seconds since it was opened.
        network: what it reaches: ``off``, ``allow`` or ``full``.
        allow: with ``allow``, patterns of hosts.
        network_problem: why its proxy does not work; None if it does.
        connections: through the proxy, at this moment.
        counters: of what was asked of it: number of decisions by verdict, and bytes.
        programs: names of the bridge's programs that it may start on the host.
    """

    id: str
    pid: int
    profile: str
    directory: str
    scope: str
    project: str | None
    project_problem: str | None
    age_s: float
    network: str
    allow: tuple[str, ...]
    network_problem: str | None
    connections: int
    counters: Mapping[str, Any]
    programs: tuple[str, ...] = ()

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one row of the answer to `boxes`."""
        row = Fields(wire, "a box")
        network = Fields(row.map("network"), "a box's network")
        return cls(
            id=row.text("id"),
            pid=row.integer("pid"),
            profile=row.text("profile"),
            directory=row.text("directory"),
            scope=row.text("scope"),
            project=row.optional("project", row.text),
            project_problem=row.optional("project_problem", row.text),
            age_s=row.number("age_s"),
            network=network.text("mode"),
            allow=network.texts("allow"),
            network_problem=network.optional("problem", network.text),
            connections=network.integer("connections"),
            counters=network.map("counters"),
            programs=row.optional("programs", row.texts) or (),
        )


class BoxPlace(NamedTuple):
    """Resources that the supervisor gave to a box.

    Attributes:
        sockets: directory on the host, to be shown in the box: `control.sock`, and `proxy.sock`
            where its network is a list.
    """

    box: BoxRow
    sockets: str

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `box_open`."""
        return cls(BoxRow.from_wire(wire), Fields(wire, "a box").text("sockets"))
