"""Limits of all clients of one listener, whatever they say themselves; pure.

An agent in a box may run code, and this code must not be a way out of its box: its sessions reach
no more than the box does.
"""

from __future__ import annotations

from nsm.dataclass import dataclass, replace
from nsmd.model.host_rules import HOST_NAME, AllowList, HostRule
from nsmd.model.values import NO_NETWORK, ClientIdentity, JailSpec, NetworkRule, ProjectMount


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of all clients of one listener.

    Attributes:
        scope: scope of their sessions.
        directory: absolute working directory of their programs; None if there is none.
        project: the same directory, as their sessions see it; None for none.
        network: upper bound of their new sessions' network; None for the configured one.
        programs: names of the bridge programs that they may start.
        writable: absolute directories and files that they can write to. Nothing in them is started
            for them on the host.
    """

    scope: str
    directory: str | None = None
    project: ProjectMount | None = None
    network: NetworkRule | None = None
    programs: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


def reach_of(client: ClientIdentity, spec: JailSpec) -> JailSpec:
    """Return what a client's new session may reach, and which secrets it has."""
    if client.network is not None:
        spec = replace(spec, network=client.network)
    if client.bound is not None:
        # A box has secrets, or not; its own proxy has nothing to do with its sessions.
        return replace(spec, network=narrowed(spec.network, client.bound), secrets=())
    return spec if client.secrets is None else replace(spec, secrets=client.secrets)


def narrowed(rule: NetworkRule, bound: NetworkRule | None) -> NetworkRule:
    """Return the rule for what both allow.

    Args:
        rule: configured rule.
        bound: upper bound; None for everything.
    """
    if bound is None or bound.mode == "full":
        return rule
    if rule.mode == "off" or bound.mode == "off":
        return NO_NETWORK
    if rule.mode == "full":
        return bound
    asked, most = AllowList.of(rule.allow).rules, AllowList.of(bound.allow).rules
    both = [
        rule.text
        for rule in asked
        if any(_covers(other, rule) for other in most)
        and not any(_would_hide(rule, other) for other in most)
    ]
    both += [
        other.text
        for other in most
        if other.text not in both and any(_covers(rule, other) for rule in asked)
    ]
    return NetworkRule(mode="allow", allow=tuple(both))


def _would_hide(entry: HostRule, bound: HostRule) -> bool:
    """Return whether requests that a bound's rule forbids could pass by an entry: it is not the
    rule's own part, and the rule is not kept beside it or does not go before it."""
    if bound.request is None or _covers(bound, entry) or not _overlaps(bound, entry):
        return False
    return entry.request is not None or not _covers(entry, bound)


def _overlaps(one: HostRule, other: HostRule) -> bool:
    """Return whether both match some connection to a name."""
    if one.ports is not None and other.ports is not None and one.ports.isdisjoint(other.ports):
        return False
    if one.network is not None or other.network is not None:
        return False
    if one.name is None or other.name is None or one.name == other.name:
        return True
    return (one.subdomains and other.name.endswith("." + one.name)) or (
        other.subdomains and one.name.endswith("." + other.name)
    )


def _covers(wide: HostRule, narrow: HostRule) -> bool:
    """Return whether one entry allows all that the other does; False if ports overlap only in
    part."""
    if wide.request is not None and wide.request != narrow.request:
        return False
    if wide.ports is not None and (narrow.ports is None or not narrow.ports <= wide.ports):
        return False
    if wide.network is not None or narrow.network is not None:
        # `*` allows only public addresses; a pattern of addresses may include others.
        if wide.network is None or narrow.network is None:
            return False
        return wide.network.version == narrow.network.version and (
            narrow.network.network_address in wide.network
            and narrow.network.prefixlen >= wide.network.prefixlen
        )
    if wide.name is None or narrow.name is None:
        # The machine itself has to be named.
        return wide.name is None and narrow.name != HOST_NAME
    if wide.subdomains:
        return narrow.name.endswith("." + wide.name) or (
            narrow.subdomains and narrow.name == wide.name
        )
    return not narrow.subdomains and narrow.name == wide.name
