"""The network of a new sandbox: what its client asks for, within what `serve` was given; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from nsm.integrations.e2b.errors import RefusalError
from nsm.integrations.e2b.requests import inner
from nsm.wire.network import network_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm.wire.run import NetworkRequest

ALL = "0.0.0.0/0"
"""Everything, as clients write it."""

_ALLOW = "allowOut"
_DENY = "denyOut"


def network_of(most: str, asked: Mapping[str, Any]) -> NetworkRequest:
    """The network of a sandbox.

    Args:
        most: what `serve` was given: ``off``, ``full``, or hosts separated by commas.
        asked: the request of the client.

    Raises:
        RefusalError: the client wants more, or what nsm does not have.
    """
    limit = network_request(most)
    if asked.get("allow_internet_access") is False:
        return network_request("off")
    network = inner(asked, "network")
    allowed, denied = _hosts(network, _ALLOW), _hosts(network, _DENY)
    for name, value in network.items():
        if name not in (_ALLOW, _DENY) and value not in (None, False, {}, []):
            raise RefusalError("unimplemented", f"nsm has no setting network.{name}")
    if any(host != ALL for host in denied):
        raise RefusalError(
            "unimplemented",
            f"{_DENY} can only be {ALL} here; name the hosts that may be reached in {_ALLOW}",
        )
    if not allowed:
        return network_request("off") if denied else limit
    if ALL in allowed:
        return limit
    if any("/" in host for host in allowed):
        raise RefusalError("unimplemented", f"{_ALLOW} can only have names of hosts here")
    if limit.mode != "full":
        more = sorted(set(allowed) - set(limit.allow))
        if more:
            raise RefusalError(
                "permission_denied",
                f"{', '.join(more)} cannot be reached from here (`nsm e2b serve --network`)",
            )
    return network_request(",".join(allowed))


def _hosts(network: Mapping[str, Any], name: str) -> list[str]:
    value: object = network.get(name)
    if value is None:
        return []
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(each, str) for each in items):
        raise RefusalError("invalid_argument", f"network.{name} must be a list of texts")
    return cast("list[str]", items)
