"""Hosts that code may reach, and requests that it may send them: configured patterns, and requested
names, addresses and paths; pure.

A requested name is parsed here and nowhere else. It is accepted only if every resolver and every
comparison reads it the same way: a text with a NUL or a character other than letters, digits, `-`
and `_` is no host, nor is a number in an unusual form (`0x7f.1`, `127.1`).

A path is compared once, in one form. What servers read in several ways is refused: dot segments,
empty segments, backslashes, and escapes of characters that separate.

A rule for requests (`GET https://HOST/PATH`) is one more pattern of the same list. So each place
that narrows, shows or stores lists does so with rules; a second list could be forgotten in one of
them, and open the host. A path that servers read in several ways is refused and not resolved, since
nobody here knows which way the server takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from nsm.dataclass import dataclass
from nsm.wire.inspection import is_request_rule

_METHODS = re.compile(r"\*|[A-Z][A-Z-]{0,31}(?:\|[A-Z][A-Z-]{0,31})*", re.ASCII)
_PATH = re.compile(r"/[!-~]*", re.ASCII)
_ESCAPE = re.compile(rb"%([0-9a-fA-F]{2})?")
_SEPARATING = frozenset(b"/\\%;?#.") | frozenset(range(0x20)) | {0x7F}
"""Characters that mean something else when they are escaped, at least to some servers."""


class RequestRuleError(ValueError):
    """A rule is invalid; the message says what was expected."""


class UnclearPathError(ValueError):
    """Servers may read a path in several ways; the message says why."""


@dataclass(frozen=True, slots=True)
class RequestRule:
    """Methods and paths of one rule.

    Attributes:
        methods: names of methods, with `|` between them; `*` for all. GET includes HEAD.
        path: path in which `*` stands for anything, at the end also beyond `/`.
    """

    methods: str
    path: str

    @property
    def takes_all(self) -> bool:
        """True if it allows every request."""
        return self.methods == "*" and self.path == "/*"

    def takes(self, method: str, path: bytes) -> bool:
        """Return whether it allows a request."""
        methods = self.methods.split("|")
        if method == "HEAD" and "GET" in methods:
            method = "GET"
        if self.methods != "*" and method not in methods:
            return False
        first, *parts = map(re.escape, self.path.encode().split(b"*"))
        pattern = first
        if parts:
            *middle, last = parts
            # Atomic, as the first place where a part matches is as good as any: trying all of them
            # would take seconds for a path that is made for that.
            pattern += b"".join(b"(?>[^/]*?%b)" % part for part in middle)
            pattern += b"[^/]*" + last if last else b".*"
        return re.fullmatch(pattern, path, re.DOTALL) is not None


def split_rule(text: str) -> tuple[str, str, str]:
    """Split a rule into methods, host with port, and path. Raises `RequestRuleError`."""
    methods, _, url = text.partition(" ")
    scheme, slashes, rest = url.strip().partition("://")
    host, slash, path = rest.partition("/")
    path = slash + path
    if not _METHODS.fullmatch(methods) or scheme != "https" or not slashes or not host:
        raise RequestRuleError(
            "is not a rule for requests, expected for example 'GET https://api.example.org/x/*'"
        )
    if not _PATH.fullmatch(path) or "?" in path or "#" in path:
        raise RequestRuleError("has no path of visible ASCII characters without ? and #")
    try:
        clear = clear_path(path.encode()).decode("latin-1")
    except UnclearPathError as error:
        raise RequestRuleError(f"has a path that {error}") from None
    if clear != path:
        raise RequestRuleError("has an escape (%) in its path; write the character itself")
    return methods, host, path


def clear_path(target: bytes) -> bytes:
    """Return the path of a request's target in the form that rules are compared with.

    Raises `UnclearPathError`.
    """
    path = target.partition(b"?")[0]
    if b"\\" in path or b"#" in path:
        raise UnclearPathError("has a backslash or a #")

    def plain(found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            raise UnclearPathError("has a % without two digits")
        if (byte := int(found[1], 16)) in _SEPARATING:
            raise UnclearPathError(f"has the escape {found[0].decode()}")
        return bytes((byte,))

    path = _ESCAPE.sub(plain, path)
    _, *segments = path.split(b"/")
    for number, segment in enumerate(segments, 1):
        if segment.partition(b";")[0] in (b".", b".."):
            raise UnclearPathError("has a segment . or ..")
        if not segment and number < len(segments):
            raise UnclearPathError("has an empty segment")
    return path


def allowed(rules: Iterable[RequestRule], method: str, path: bytes) -> bool:
    """Return whether one of these rules allows a request."""
    return any(rule.takes(method, path) for rule in rules)


Address = IPv4Address | IPv6Address
Host = str | IPv4Address | IPv6Address
"""A name in lower case without a final dot, or an address."""

DEFAULT_PORTS = frozenset({80, 443})
"""Ports of a pattern that names none: those of the web."""

HOST_NAME = "host.nsm.internal"
"""Name of the machine that the supervisor runs on, for patterns. `localhost` in a session is the
session itself.
"""

MAX_RULES = 256
MAX_NAME = 253
MAX_PATTERN = 300

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class HostRuleError(ValueError):
    """An invalid pattern; the message says what was expected."""


class BadHostError(ValueError):
    """An invalid host."""


@dataclass(frozen=True, slots=True)
class HostRule:
    """One pattern.

    Attributes:
        text: form to show and to compare: lower case, ASCII.
        name: name to match, or its end with `subdomains`; None for any.
        network: addresses to match; None for names.
        request: the requests to it that are allowed, which nsm reads; None for any connection.
    """

    text: str
    name: str | None = None
    subdomains: bool = False
    network: IPv4Network | IPv6Network | None = None
    ports: frozenset[int] | None = DEFAULT_PORTS
    request: RequestRule | None = None

    def takes_port(self, port: int) -> bool:
        """Return whether the rule allows that port."""
        return self.ports is None or port in self.ports

    def names(self, host: Host) -> bool:
        """Return whether the rule matches that host, with any port."""
        if self.network is not None:
            return not isinstance(host, str) and host in self.network
        if self.name is None:
            return True
        if not isinstance(host, str):
            return False
        # Whole labels only: `evil-example.com` does not end with `.example.com`.
        return host.endswith("." + self.name) if self.subdomains else host == self.name


def parse_rule(text: str) -> HostRule:
    """Parse a pattern: `HOST`, `*.HOST`, `ADDRESS`, `NETWORK/BITS` or `*`, and perhaps `:PORT` or
    `:*`; or a rule for requests to names. Raises `HostRuleError`.
    """
    if len(text) > MAX_PATTERN:
        raise HostRuleError(f"has {len(text)} characters, expected at most {MAX_PATTERN}")
    if is_request_rule(text):
        return _request_rule(text)
    if "://" in text or ("/" in text and not _looks_like_network(text)):
        raise HostRuleError("is a URL or a path, expected a host such as example.org")
    host, port = _split_port(text)
    ports = _ports(port)
    suffix = "" if ports == DEFAULT_PORTS else f":{port}"
    if host == "*":
        return HostRule(f"*{suffix}", ports=ports)
    if (network := _network(host)) is not None:
        return HostRule(_network_text(network) + suffix, network=network, ports=ports)
    subdomains = host.startswith("*.")
    name = host.removeprefix("*.")
    if "*" in name:
        raise HostRuleError("has * elsewhere than in front, expected for example *.example.org")
    try:
        found = parse_host(_to_ascii(name))
    except BadHostError as error:
        raise HostRuleError(
            f"{error}, expected for example example.org, *.example.org:443"
        ) from None
    if not isinstance(found, str):
        raise HostRuleError("is an address with *., expected an address or a name")
    return HostRule(
        f"{host[:2] if subdomains else ''}{found}{suffix}", found, subdomains, ports=ports
    )


def _request_rule(text: str) -> HostRule:
    try:
        methods, host, path = split_rule(text)
    except RequestRuleError as error:
        raise HostRuleError(str(error)) from None
    rule = parse_rule(host)
    if rule.name is None or "." not in rule.name or rule.ports is None:
        raise HostRuleError("is a rule for requests, which needs a full name such as example.org")
    port = 443 if rule.ports == DEFAULT_PORTS else min(rule.ports)
    shown = f"{'*.' if rule.subdomains else ''}{rule.name}{'' if port == 443 else f':{port}'}"
    return HostRule(
        f"{methods} https://{shown}{path}",
        rule.name,
        rule.subdomains,
        ports=frozenset((port,)),
        request=RequestRule(methods, path),
    )


def parse_rules(texts: Iterable[str]) -> tuple[HostRule, ...]:
    """Parse patterns; each appears once, in order. Raises `HostRuleError`."""
    rules: dict[str, HostRule] = {}
    for text in texts:
        try:
            rule = parse_rule(text)
        except HostRuleError as error:
            raise HostRuleError(f"{text[:80]!r} {error}") from None
        rules[rule.text] = rule
    if len(rules) > MAX_RULES:
        raise HostRuleError(f"{len(rules)} patterns, expected at most {MAX_RULES}")
    return tuple(rules.values())


def parse_host(text: str) -> Host:
    """Parse a requested host; IPv6 addresses have no brackets. Raises `BadHostError`."""
    if ":" in text:
        # No zone (`%eth0`): it names one of the host's interfaces.
        try:
            return IPv6Address(text) if "%" not in text else _no_host("has a zone")
        except ValueError:
            return _no_host("is not an IPv6 address")
    name = text.lower() if text.isascii() else text
    name = name.removesuffix(".")
    if not name or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        return _no_host("is not a host name")
    if not _NUMBER.fullmatch(name.rpartition(".")[2]):
        return name
    # As in the URL standard: a text that ends in a number is an IPv4 address or nothing. Resolvers
    # read `127.1`, `0x7f000001` and `017700000001` as addresses, too.
    try:
        return IPv4Address(name)
    except ValueError:
        return _no_host("is not an IPv4 address")


def parse_port(text: str) -> int:
    """Parse a port, from 1. Raises `BadHostError`."""
    if not _PORT.fullmatch(text) or not 0 < int(text) < 65536:
        raise BadHostError("has no port from 1 to 65535")
    return int(text)


def parse_authority(text: str, default_port: int | None = None) -> tuple[Host, int]:
    """Parse ``HOST:PORT`` as in a request to a proxy; IPv6 addresses have brackets.

    Raises `BadHostError`.
    """
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host:
            _no_host("is not an address in brackets")
    else:
        host, colon, port = text.partition(":")
        rest = colon + port
        if "]" in text or ":" in port:
            _no_host("is not HOST:PORT")
    if not rest and default_port is not None:
        return parse_host(host), default_port
    if not rest.startswith(":"):
        _no_host("has no port")
    return parse_host(host), parse_port(rest[1:])


def show_host(host: Host, port: int | None = None) -> str:
    """Format a host for people, and for HTTP's `Host`."""
    text = f"[{host}]" if isinstance(host, IPv6Address) else str(host)
    return text if port is None else f"{text}:{port}"


class AllowList:
    """List of reachable hosts. Empty, it allows nothing."""

    __slots__ = ("rules",)

    def __init__(self, rules: Sequence[HostRule] = ()) -> None:
        self.rules = tuple(rules)

    @classmethod
    def of(cls, texts: Iterable[str]) -> AllowList:
        """Make a list from texts. Raises `HostRuleError`."""
        return cls(parse_rules(texts))

    def __repr__(self) -> str:
        return f"<AllowList {', '.join(self.texts)}>"

    @property
    def texts(self) -> tuple[str, ...]:
        """Patterns as texts."""
        return tuple(rule.text for rule in self.rules)

    def permits(self, host: Host, port: int) -> bool:
        """Return whether code may request a host on that port. A name must also resolve to allowed
        addresses.
        """
        return any(rule.takes_port(port) and rule.names(host) for rule in self.rules)

    def knows(self, host: Host) -> bool:
        """Return whether a host may be reached on some port."""
        return any(rule.names(host) for rule in self.rules)

    def names_address(self, address: Address, port: int) -> bool:
        """Return whether that address is named, by itself or by its network, and not only allowed
        with everything else.
        """
        return any(
            rule.network is not None and rule.takes_port(port) and address in rule.network
            for rule in self.rules
        )

    def names_host(self, name: str, port: int) -> bool:
        """Return whether a name is in the list, itself or with all below a name, and not only
        allowed with everything else.
        """
        return any(
            rule.name is not None and rule.takes_port(port) and rule.names(name)
            for rule in self.rules
        )

    def names_machine(self, port: int) -> bool:
        """Return whether the supervisor's machine is named, and not only allowed with everything
        else.
        """
        return any(
            rule.name == HOST_NAME and not rule.subdomains and rule.takes_port(port)
            for rule in self.rules
        )

    def requests_to(self, host: Host, port: int) -> tuple[RequestRule, ...]:
        """Return the rules for requests to a host."""
        return tuple(
            rule.request
            for rule in self.rules
            if rule.request is not None and rule.takes_port(port) and rule.names(host)
        )

    def with_rules(self, added: Iterable[HostRule]) -> AllowList:
        """Return a list with more patterns. Raises `HostRuleError`."""
        return AllowList(parse_rules([*self.texts, *(rule.text for rule in added)]))

    def without(self, removed: Iterable[HostRule]) -> AllowList:
        """Return a list without those patterns."""
        gone = {rule.text for rule in removed}
        return AllowList([rule for rule in self.rules if rule.text not in gone])


def _no_host(why: str) -> str:
    raise BadHostError(why)


def _looks_like_network(text: str) -> bool:
    return bool(re.fullmatch(r"\[?[0-9a-fA-F.:]+/[0-9]{1,3}\]?(?::(?:[0-9]+|\*))?", text))


def _split_port(text: str) -> tuple[str, str]:
    """Split host and port; the port is empty if there is none."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise HostRuleError("has an open bracket, expected for example [2001:db8::1]:443")
        return host, rest[1:]
    if text.count(":") > 1:  # an address without brackets cannot have a port
        return text, ""
    host, colon, port = text.partition(":")
    if colon and not port:
        raise HostRuleError("has no port after :, expected for example example.org:443")
    return host, port


def _ports(text: str) -> frozenset[int] | None:
    if not text:
        return DEFAULT_PORTS
    if text == "*":
        return None
    try:
        return frozenset({parse_port(text)})
    except BadHostError as error:
        raise HostRuleError(f"{error}, expected for example example.org:443 or :*") from None


def _network(text: str) -> IPv4Network | IPv6Network | None:
    """Parse a network; an address is a network of one."""
    if "%" in text:
        raise HostRuleError("has a zone, expected an address without")
    try:
        address = ip_address(text)
    except ValueError:
        pass
    else:
        return ip_network(address)
    if "/" not in text:
        return None
    try:
        return ip_network(text)
    except ValueError as error:
        raise HostRuleError(f"is not a network ({error})") from None


def _network_text(network: IPv4Network | IPv6Network) -> str:
    single = network.prefixlen == network.max_prefixlen
    text = str(network.network_address if single else network)
    return f"[{text}]" if isinstance(network, IPv6Network) else text


def _to_ascii(name: str) -> str:
    """Convert a name to the form of resolvers. Requests of code are accepted only in that form."""
    if name.isascii():
        return name
    import idna  # noqa: PLC0415 - few names need it

    try:
        return idna.encode(name, uts46=True).decode()
    except idna.IDNAError as error:
        raise HostRuleError(f"is not a host name ({error})") from None
