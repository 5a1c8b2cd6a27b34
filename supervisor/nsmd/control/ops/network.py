"""Ways between sessions or boxes and the world: network rules, secrets, ports on the host, and the
sockets for agents in boxes, which the program that becomes the box asks for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import trio

from nsm.wire.code import NetworkRequest
from nsm.wire.errors import BadRequestError, ForbiddenError
from nsm.wire.host import PortRow, RequestedBoxLimits
from nsm.wire.sessions import PortAddress
from nsmd.bridge.programs import Caller
from nsmd.control.call import Call
from nsmd.jail.limits import BoxBounds
from nsmd.model.host_rules import AllowList, HostRule, HostRuleError, parse_rules
from nsmd.model.names import PROGRAM_NAME
from nsmd.model.secrets import MAX_SECRETS, SECRET_NAME
from nsmd.model.values import NetworkRule
from nsmd.network.decisions import Decision
from nsmd.sessions.session import Session

MAX_PROGRAMS = 64

_OFF = "`[bridge] enabled = true` in config.toml turns it on; then `nsm reload --config`."


async def box_open(
    call: Call,
    directory: str,
    profile: str,
    digest: str,
    network: NetworkRequest,
    *,
    shows_project: bool = False,
    programs: tuple[str, ...] = (),
    secrets: tuple[str, ...] = (),
    writable: tuple[str, ...] = (),
    limits: RequestedBoxLimits | None = None,
) -> dict[str, Any]:
    """Open sockets for the asking process, which end with it."""
    rule = chosen_network(call, network)
    assert rule is not None, "one was given"
    box = await call.services.boxes.open(
        call.peer[0],
        directory=directory,
        profile=profile,
        digest=digest,
        network=rule,
        shows_project=shows_project,
        programs=await _programs(call, programs),
        secrets=checked_secrets(secrets),
        writable=writable,
        bounds=None if limits is None else BoxBounds(**limits._asdict()),
    )
    given = None
    if box.grant is not None:
        given = {
            "variables": dict(box.grant.variables),
            "certificate": call.services.run_service.session_manager.gateway.certificates
            + box.grant.certificate,
        }
    return box.facts() | {"sockets": box.sockets_directory, "given_secrets": given}


async def boxes(call: Call) -> list[dict[str, Any]]:
    """List the boxes."""
    return list(call.services.boxes.rows())


async def _programs(call: Call, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Bridge programs that the box may start. All must exist, so that a mistyped name shows now and
    not within the box.
    """
    bridge = call.services.bridge
    names = sorted(set(wanted))
    if len(names) > MAX_PROGRAMS or not all(map(PROGRAM_NAME.fullmatch, names)):
        raise BadRequestError(
            f"`programs` must be at most {MAX_PROGRAMS} names of the bridge's programs."
        )
    if not names:
        return ()
    if not call.bridges:
        raise ForbiddenError(
            "This connection must not start programs of the bridge, nor give them to a box.",
            hint="Leave `programs` out, or connect with the right `bridge`.",
        )
    if not bridge.enabled:
        raise BadRequestError("The bridge is off.", hint=_OFF)
    caller = Caller(client=call.client, scope=call.scope, way="control", peer=call.peer)
    known = {program.name for program in bridge.programs(caller)}
    if not known.issuperset(names):
        await bridge.read_definitions()  # one may have been described just now
    for name in names:
        bridge.program(caller, name)
    return tuple(names)


MAX_SHOWN = 50
"""Largest number of decisions in one answer, the latest."""


def chosen_network(call: Call, asked: NetworkRequest | None) -> NetworkRule | None:
    """Read the network rule of a `run`; None for the configured one."""
    if asked is None:
        return None
    if call.confined:
        raise ForbiddenError(
            "This connection may run code, but not choose the code's network.",
            hint="Leave `network` out.",
        )
    match asked.mode:
        case "off" | "full" as mode if not asked.allow:
            return NetworkRule(mode=mode)
        case "allow":
            return NetworkRule(mode="allow", allow=AllowList(_rules(asked.allow)).texts)
        case other:
            raise BadRequestError(
                f"The network {other!r:.80} is not known.",
                hint="It is `off`, `full`, or `allow` with a list of hosts in `allow`.",
            )


async def net(
    call: Call, target: str, action: str = "list", hosts: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Show a session's network, or change it."""
    session, rules = call.find(target), _rules(hosts)
    if any(rule.request is not None for rule in rules):
        raise BadRequestError(
            "A live session's rules for requests cannot be changed: its programs trust nsm's "
            "certificate for these hosts from their start.",
            hint="Give hosts only, or start another session with these rules in its `network`.",
        )
    if bool(rules) != (action in ("allow", "deny")):
        raise BadRequestError(
            f"The action {action!r:.80} takes {'no' if rules else 'one or more'} hosts.",
            hint="`allow` and `deny` take `hosts`; `list` and `off` take none.",
        )
    network = session.network
    match action:
        case "list":
            pass
        case "allow":
            try:
                await network.allow(rules)
            except HostRuleError as error:
                raise BadRequestError(f"The list would be too long: {error}.") from None
        case "deny":
            network.deny(rules)
        case "off":
            network.turn_off()
        case _:
            raise BadRequestError(
                f"The action {action!r:.80} is not known.",
                hint="It is `list`, `allow`, `deny` or `off`.",
            )
    return _told(session)


def _rules(texts: Iterable[str]) -> tuple[HostRule, ...]:
    try:
        return parse_rules(texts)
    except HostRuleError as error:
        raise BadRequestError(
            f"Not a host: {error}.", hint="docs/how-to/network.md describes patterns."
        ) from None


def _told(session: Session) -> dict[str, Any]:
    network, now = session.network, trio.current_time()
    recent = network.decisions_since(max(0, network.made - MAX_SHOWN))
    return {
        "session": {"id": session.id, "name": session.name},
        **network.facts(),
        "decisions": [decision_row(decision, now) for decision in recent],
    }


def decision_row(decision: Decision, now: float) -> dict[str, Any]:
    """Row of a decision; `now` is on trio's clock."""
    return {
        "age_s": now - decision.at_s,
        "protocol": decision.protocol,
        "host": decision.host,
        "port": decision.port,
        "verdict": decision.verdict,
        "detail": decision.detail,
        "address": decision.address,
    }


def chosen_secrets(call: Call, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Check the secrets of a `run`; None for the configured ones."""
    if names is None:
        return None
    if call.confined:
        raise ForbiddenError(
            "This connection may run code, but not choose the code's secrets.",
            hint="Leave `secrets` out.",
        )
    return checked_secrets(names)


def checked_secrets(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check names of secrets; returns each once."""
    names = tuple(dict.fromkeys(names))
    if len(names) > MAX_SECRETS or not all(map(SECRET_NAME.fullmatch, names)):
        raise BadRequestError(f"`secrets` must be at most {MAX_SECRETS} names of secrets.")
    return names


async def secrets(call: Call) -> dict[str, Any]:
    """List the secrets, and who has them."""
    listed = call.services.secrets.rows()
    live = {session.id: session.name for session in call.services.run_service.live_sessions()}
    boxes = {row["id"] for row in call.services.boxes.rows()}
    for grant in listed["grants"]:
        owner = grant["owner"]
        grant["kind"] = "box" if owner in boxes else "session"
        grant["name"] = live.get(owner)
    return listed


async def secret_test(call: Call, name: str) -> str:
    """Read a secret as for a session, and tell what code would see."""
    return await call.services.secrets.test(name)


async def secret_revoke(call: Call, name: str, owner: str | None = None) -> tuple[str, ...]:
    """Make the stand-ins of a secret worthless, in one session or box or in all."""
    if owner is not None and owner not in {row["id"] for row in call.services.boxes.rows()}:
        owner = call.find(owner).id
    return tuple(call.services.secrets.revoke(name, owner))


async def port_open(
    call: Call, target: str, port: int, *, listen: str = "", public: bool = False
) -> PortRow:
    """Open a port of a session on the host."""
    session = call.find(target)
    return await call.services.ports.open(session, port, listen, public=public, client=call.client)


async def port_close(call: Call, target: str, port: int) -> list[PortRow]:
    """Close a port of a session."""
    return call.services.ports.close(call.find(target), port, call.client)


async def ports(call: Call, target: str | None = None) -> list[PortRow]:
    """List the open ports, and those of the configuration that could not be opened: of one
    session, or of all.
    """
    return listed_ports(call, None if target is None else call.find(target).id)


def listed_ports(call: Call, session_id: str | None) -> list[PortRow]:
    """List ports for `ports` and `inspect`."""
    manager = call.services.ports
    return [*manager.rows(session_id), *manager.unopened(session_id)]


def port_addresses(call: Call, session_id: str) -> list[PortAddress]:
    """List ports of a session and where to connect to them."""
    rows = call.services.ports.rows(session_id)
    return [PortAddress(row.port, row.address) for row in rows]
