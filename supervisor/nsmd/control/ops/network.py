"""Network rules of sessions: requested at their start, shown and changed while they live."""

from __future__ import annotations

from typing import Any

import trio

from nsm.wire.errors import BadRequestError, ForbiddenError
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.model.host_rules import AllowList, HostRule, HostRuleError, parse_rules
from nsmd.model.values import NetworkRule
from nsmd.network.decisions import Decision
from nsmd.sessions.session import Session

MAX_SHOWN = 50
"""Largest number of decisions in one answer, the latest."""


def wanted(call: Call) -> NetworkRule | None:
    """Read the network rule of a `run`; None for the configured one.

    Raises:
        ForbiddenError: the connection may not choose.
        BadRequestError: the rule is invalid.
    """
    asked = arguments.optional_map(call.args, "network")
    if asked is None:
        return None
    if call.confined:
        raise ForbiddenError(
            "This connection may run code, but not choose the code's network.",
            hint="Leave `network` out.",
        )
    mode, hosts = arguments.text(asked, "mode"), arguments.texts(asked, "allow")
    match mode:
        case "off" | "full" if not hosts:
            return NetworkRule(mode=mode)
        case "allow":
            return NetworkRule(mode="allow", allow=AllowList(_rules(hosts)).texts)
        case _:
            raise BadRequestError(
                f"The network {mode!r:.80} is not known.",
                hint="It is `off`, `full`, or `allow` with a list of hosts in `allow`.",
            )


async def net(call: Call) -> dict[str, Any]:
    """Show a session's network, or change it."""
    session, action = call.target(), arguments.optional_text(call.args, "action") or "list"
    rules = _rules(arguments.texts(call.args, "hosts"))
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


def _rules(texts: list[str]) -> tuple[HostRule, ...]:
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
