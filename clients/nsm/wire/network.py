"""The answer to `net`: what a session may reach."""

from typing import Annotated, Any, NamedTuple

from nsm.wire.errors import BadRequestError
from nsm.wire.operation import operation
from nsm.wire.run import NetworkRequest


class NetworkDecision(NamedTuple):
    """A host that code in the session asked for, and what became of it.

    Attributes:
        age_s: seconds since then.
        protocol: ``connect``, ``http`` or ``socks5``.
        host: as it was asked for; empty, and `port` 0, where it was none.
        verdict: ``allowed``; ``off``, ``not-allowed``, ``port``, ``address`` or ``bad-request``,
            which a rule refused; ``unresolved``, ``unreachable`` or ``busy``.
        detail: why, for people.
        address: address of the connection; empty if there was none.
    """

    age_s: float
    protocol: str
    host: str
    port: int
    verdict: str
    detail: str
    address: str


class NetworkReport(NamedTuple):
    """The network of one live session, as it is now.

    Attributes:
        session_id, session_name: the name is None for a one-shot.
        mode: ``off``, ``allow`` or ``full``.
        allow: patterns of hosts.
        port: port of the proxy on the session's own loopback; None if there is no proxy.
        problem: rule that is not in force although it should be, for people; else None.
        connections: number of open connections.
        counters: decisions by verdict, `sent_bytes` and `received_bytes`.
        decisions: the latest, at most 50, the newest last.
    """

    session_id: Annotated[str, "session.id"]
    session_name: Annotated[str | None, "session.name"]
    mode: str
    allow: tuple[str, ...]
    port: int | None
    problem: str | None
    connections: int
    counters: dict[str, Any]
    decisions: tuple[NetworkDecision, ...]


_OLD_WORDS = {"host": "full", "none": "off"}
_NO_HOSTS = frozenset(("", "all", "allow", "false", "no", "on", "true", "yes"))
_WORDS = frozenset(("off", "full", *_OLD_WORDS, *_NO_HOSTS))


def network_request(text: str) -> NetworkRequest:
    """Read ``off``, ``full`` or hosts separated by commas.

    The older spellings ``host``, ``none`` and ``allow=HOST,...`` are read as well.

    Raises:
        BadRequestError: it names no host, or is a word that looks like a mode and is none.
    """
    mode = _OLD_WORDS.get(text, text)
    if mode in ("off", "full"):
        return NetworkRequest(mode)
    listed = [host.strip() for host in text.removeprefix("allow=").split(",")]
    hosts = dict.fromkeys(filter(None, listed))
    # Each of these words might be a host's name, and is nobody's.
    if not hosts or any(host.lower() in _WORDS for host in hosts):
        raise BadRequestError(
            f"The network {text!r} is neither off nor full, nor hosts separated by commas.",
            hint="For example: pypi.org,*.example.org:443",
        )
    return NetworkRequest("allow", tuple(hosts))


def is_request_rule(text: str) -> bool:
    """Return whether a pattern of a list of hosts is meant as a rule for requests."""
    return " " in text.strip()


def read_all_requests(text: str) -> str:
    """Make a rule for all requests of the pattern of a host; a rule stays as it is."""
    return text if is_request_rule(text) else f"* https://{text}/*"


@operation("manage", recorded=("target", "action", "hosts"))
def net(target: str, action: str = "list", hosts: tuple[str, ...] = ()) -> NetworkReport: ...
