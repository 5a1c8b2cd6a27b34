"""Secrets as configured: where the value comes from, which hosts get it, how code sees it; pure.

The value itself is never here. Only the process that puts it into requests reads it
(`nsmd.network.secrets`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from nsm.dataclass import dataclass
from nsmd.model.host_rules import DEFAULT_PORTS, HOST_NAME, HostRuleError, parse_rule

SourceKind = Literal["command", "file", "keyring", "environment"]
SOURCE_KINDS: tuple[SourceKind, ...] = get_args(SourceKind)

SECRET_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
MAX_SECRETS = 16
"""Largest number of secrets of one session or box."""

MAX_HOSTS = 32
"""Largest number of hosts of one secret."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", re.ASCII)
_PREFIX = re.compile(r"[!-~]{1,32}", re.ASCII)

_FRAMING = frozenset(
    (
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""Headers that say where a request goes and where it ends."""

_RUNS_CODE = r"LD_|PYTHON|NODE_OPTIONS|BASH_ENV|ENV\Z|PATH\Z|HOME\Z|IFS\Z|PERL|RUBY|NSM_"
"""Variables that decide which programs run, or that nsm sets itself."""


class SecretRuleError(ValueError):
    """A part of a secret's configuration is invalid; the message says what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSource:
    """Source of a value.

    Attributes:
        words: the command and its arguments; or one path or variable name.
    """

    kind: SourceKind
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretHost:
    """A host that gets a value, over TLS.

    Attributes:
        name: its name, or the end of its name with `subdomains`.
    """

    name: str
    port: int
    subdomains: bool = False

    @property
    def text(self) -> str:
        """Text as in the configuration."""
        port = "" if self.port == 443 else f":{self.port}"
        return f"{'*.' if self.subdomains else ''}{self.name}{port}"

    def takes(self, host: object, port: int) -> bool:
        """Return whether that host is meant."""
        if not isinstance(host, str) or port != self.port:
            return False
        return host.endswith("." + self.name) if self.subdomains else host == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRule:
    """One secret.

    Attributes:
        variables: names of variables that have its stand-in.
        headers: headers that are added to requests without them: the name, and what comes before
            the value.
    """

    name: str
    source: SecretSource
    hosts: tuple[SecretHost, ...]
    variables: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()

    def is_for(self, host: object, port: int) -> bool:
        """Return whether that host gets the value."""
        return any(each.takes(host, port) for each in self.hosts)


def parse_secret(name: str, source: str, hosts: Sequence[str], uses: Sequence[str]) -> SecretRule:
    """Parse `[secrets.NAME]`. Raises `SecretRuleError`."""
    if not SECRET_NAME.fullmatch(name):
        raise SecretRuleError("a name is 1 to 64 of a-z, 0-9, - and _, not beginning with - or _")
    if not 0 < len(hosts) <= MAX_HOSTS:
        raise SecretRuleError(f"hosts: has {len(hosts)} hosts, expected 1 to {MAX_HOSTS}")
    variables: list[str] = []
    headers: dict[str, tuple[str, str]] = {}
    for use in uses:
        kind, _, rest = use.partition(":")
        rest = rest.strip()
        if kind == "env":
            variables.append(_variable(rest))
        elif kind == "header":
            header, prefix = _header(rest)
            if header.lower() in headers:
                raise SecretRuleError(f"as: has the header {header} twice")
            headers[header.lower()] = header, prefix
        else:
            raise SecretRuleError(
                f"as: found {use!r:.80}, expected 'env: VARIABLE' or 'header: NAME: PREFIX'"
            )
    if not uses:
        raise SecretRuleError("as: is empty, expected 'env: VARIABLE' or 'header: NAME: PREFIX'")
    return SecretRule(
        name=name,
        source=parse_source(source),
        hosts=tuple(dict.fromkeys(map(_host, hosts))),
        variables=tuple(dict.fromkeys(variables)),
        headers=tuple(headers.values()),
    )


def parse_source(text: str) -> SecretSource:
    """Parse `KIND: WORDS`. Raises `SecretRuleError`."""
    kind, colon, rest = text.partition(":")
    rest = rest.strip()
    if not colon or kind not in SOURCE_KINDS or not rest or "\0" in rest:
        # The text is not shown: somebody may have put the value itself here.
        kinds = ", ".join(f"'{each}: ...'" for each in SOURCE_KINDS)
        raise SecretRuleError(f"from: expected one of {kinds}")
    if kind == "command":
        try:
            words = tuple(shlex.split(rest))
        except ValueError as error:
            raise SecretRuleError(f"from: the command has wrong quotes ({error})") from None
        return SecretSource(kind=kind, words=words)
    if kind == "keyring":
        words = tuple(rest.split())
        if len(words) != 2:
            raise SecretRuleError("from: expected 'keyring: SERVICE USER'")
        return SecretSource(kind=kind, words=words)
    if kind == "file" and not rest.startswith(("/", "~/")):
        raise SecretRuleError("from: expected 'file: ' and an absolute path, or one below ~/")
    if kind == "environment" and not _VARIABLE.fullmatch(rest):
        raise SecretRuleError("from: expected 'environment: ' and the name of a variable")
    return SecretSource(kind=kind, words=(rest,))


def same_header(secrets: Iterable[SecretRule]) -> tuple[SecretRule, SecretRule, str] | None:
    """Find two secrets that add the same header for the same host; None if there are none."""
    seen: list[SecretRule] = []
    for secret in secrets:
        for other in seen:
            both = {name.lower() for name, _ in secret.headers} & {
                name.lower() for name, _ in other.headers
            }
            if both and any(_overlap(a, b) for a in secret.hosts for b in other.hosts):
                return other, secret, min(both)
        seen.append(secret)
    return None


def _overlap(one: SecretHost, other: SecretHost) -> bool:
    """Return whether some host is meant by both."""
    if one.port != other.port:
        return False
    if one.subdomains and other.subdomains:
        return one.name == other.name or _takes_either(one, other)
    if one.subdomains or other.subdomains:
        wide, narrow = (one, other) if one.subdomains else (other, one)
        return wide.takes(narrow.name, one.port)
    return one.name == other.name


def _takes_either(one: SecretHost, other: SecretHost) -> bool:
    return one.takes(other.name, one.port) or other.takes(one.name, one.port)


def _host(text: str) -> SecretHost:
    try:
        rule = parse_rule(text)
    except HostRuleError as error:
        raise SecretRuleError(f"hosts: {text!r:.80} {error}") from None
    if rule.name is None or "." not in rule.name or rule.request is not None:
        raise SecretRuleError(
            f"hosts: {text!r:.80} is not a full name, expected for example api.example.org"
        )
    if rule.ports is None:
        raise SecretRuleError(f"hosts: {text!r:.80} is every port; name one, or none for 443")
    port = 443 if rule.ports == DEFAULT_PORTS else min(rule.ports)
    if rule.subdomains and rule.name == HOST_NAME:
        raise SecretRuleError(f"hosts: {HOST_NAME} has no subdomains")
    return SecretHost(name=rule.name, port=port, subdomains=rule.subdomains)


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise SecretRuleError(f"as: {text!r:.80} is not a name for a variable")
    if re.match(_RUNS_CODE, text):
        raise SecretRuleError(f"as: the variable {text} decides what runs, and can have no secret")
    return text


def _header(text: str) -> tuple[str, str]:
    name, _, prefix = text.partition(":")
    name, prefix = name.strip(), prefix.strip()
    if not _HEADER.fullmatch(name) or (prefix and not _PREFIX.fullmatch(prefix)):
        raise SecretRuleError(
            f"as: found the header {text!r:.80}, expected for example "
            "'header: Authorization: Bearer'"
        )
    if name.lower() in _FRAMING or name.lower().startswith(("proxy-", "sec-")):
        raise SecretRuleError(f"as: the header {name} is not for secrets")
    return name, prefix
