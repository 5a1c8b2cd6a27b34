"""Rules for requests to one host, and for its responses; no I/O."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from nsm.dataclass import dataclass
from nsmd.model.host_rules import RequestRule, UnclearPathError, allowed, clear_path
from nsmd.network.secrets.redaction import Redactor
from nsmd.network.secrets.stand_ins import find, find_in_header, replace_in_header
from nsmd.network.secrets.vault import Vault

Headers = list[tuple[bytes, bytes]]

_DROPPED = frozenset((b"accept-encoding", b"if-range", b"range", b"sec-websocket-extensions"))
"""Request headers that would have the server send what cannot be searched: compressed bytes, or a
part of a value.
"""

_OVERRIDING = frozenset(
    (
        b"x-http-method",
        b"x-http-method-override",
        b"x-method-override",
        b"x-original-url",
        b"x-rewrite-url",
    )
)
"""Request headers by which some servers take another method or path."""

_NEVER_SEARCHED = frozenset((b"content-length", b"host", b"transfer-encoding"))
_NEVER_IN_TRAILERS = _NEVER_SEARCHED | _DROPPED | {b"connection", b"upgrade"}
"""Headers that say where a message goes, where it ends or how to answer it (RFC 9110, 6.5.1). They
are refused as trailers, because some servers add trailers to the headers.
"""

_METHOD = re.compile(rb"[A-Z][A-Z-]{0,31}")

MAX_PATH = 300
"""Characters of a path in the audit."""


def _plain(name: bytes) -> bytes:
    """A header's name as servers compare it that have names of variables made of it."""
    return name.lower().replace(b"_", b"-")


class RefusedRequestError(Exception):
    """A request is refused; the message is for the client, and for people. The verdict is
    `placeholder` for that of `secret` where it is worth nothing, `rule` for a request that
    the rules do not allow, else `bad-request`.
    """

    def __init__(self, verdict: str, message: str, *, secret: str = "") -> None:
        super().__init__(message)
        self.verdict = verdict
        self.secret = secret

    @property
    def status(self) -> int:
        """Status of the answer."""
        return 400 if self.verdict == "bad-request" else 403


class RefusedResponseError(Exception):
    """A response cannot be searched, so nobody gets it."""

    status = 502


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request for the server: headers without values, and names of the secrets that it takes."""

    method: bytes
    target: bytes
    headers: Headers
    secrets: tuple[str, ...]

    @property
    def path(self) -> str:
        """The path without its query, for people."""
        return shown_path(self.target)


class HostRules:
    """Rules of one connection to a host. Without rules for requests, all requests are allowed."""

    def __init__(
        self, host: str, port: int, vault: Vault, request_rules: Sequence[RequestRule] = ()
    ) -> None:
        self.host = host
        self.port = port
        self._vault = vault
        takes_all = any(rule.takes_all for rule in request_rules)
        self._request_rules = () if takes_all else request_rules

    def check(self, method: bytes, target: bytes, headers: Headers) -> CheckedRequest:
        """Check a request, and find the secrets in it."""
        self._check_form(method, target, headers)
        self._check_rules(method, target, headers)
        stand_ins = self._vault.stand_ins
        usable = self._vault.usable(self.host, self.port)
        if (name := find(target, stand_ins)) is not None:
            raise RefusedRequestError(
                "placeholder",
                f"the placeholder of secret {name} is in the URL, where servers write it to logs; "
                "nsm puts values into headers only",
                secret=name,
            )
        used: list[str] = []
        kept: list[tuple[bytes, bytes]] = []
        foreign = {name: each for name, each in stand_ins.items() if name not in usable}
        for header, value in headers:
            lower = header.lower()
            if lower in _DROPPED and self.searches:
                continue
            kept.append((header, value))
            if lower in _NEVER_SEARCHED:
                continue
            if (name := find_in_header(lower, value, foreign)) is not None:
                raise RefusedRequestError(
                    "placeholder",
                    f"the placeholder of secret {name} is not replaced at {self.host}: the "
                    "secret is for other hosts, or was revoked",
                    secret=name,
                )
            used += replace_in_header(lower, value, usable).names
        if self.searches:
            kept.append((b"Accept-Encoding", b"gzip"))
        present = {header.lower() for header, _ in kept}
        used += [
            secret
            for secret, added, _ in self._vault.added_headers(self.host, self.port)
            if added.lower().encode() not in present
        ]
        return CheckedRequest(
            method=method, target=target, headers=kept, secrets=tuple(dict.fromkeys(used))
        )

    def check_trailers(self, trailers: Headers) -> None:
        """Check the headers behind the body of a request. No value is put into them."""
        stand_ins = self._vault.stand_ins
        for trailer, value in trailers:
            lower = trailer.lower()
            if lower in _NEVER_IN_TRAILERS:
                shown = lower.decode("ascii", "replace")
                raise bad_request(f"{shown} must be among its headers, not behind its body")
            if (name := find_in_header(lower, value, stand_ins)) is not None:
                raise RefusedRequestError(
                    "placeholder",
                    f"the placeholder of secret {name} is in a trailer, behind the body; nsm puts "
                    "values into headers only",
                    secret=name,
                )
        self._check_overriding(trailers)

    async def with_values(self, request: CheckedRequest) -> Headers:
        """Return the headers for the server, with values. A `RefusedRequestError` says that a
        secret was revoked since the request was checked.
        """
        if not request.secrets:
            return request.headers
        await self._vault.refresh(request.secrets)
        self.check_not_revoked(request)
        usable = self._vault.usable(self.host, self.port)
        made = [
            (header, value)
            if header.lower() in _NEVER_SEARCHED
            else (header, replace_in_header(header.lower(), value, usable).value)
            for header, value in request.headers
        ]
        present = {header.lower() for header, _ in made}
        for name, header, prefix in self._vault.added_headers(self.host, self.port):
            if header.lower().encode() not in present:
                value = f"{prefix} {usable[name][1]}" if prefix else usable[name][1]
                made.append((header.encode(), value.encode()))
        return made

    def check_not_revoked(self, request: CheckedRequest) -> None:
        """Refuse a request if one of its secrets was revoked after it was checked."""
        usable = self._vault.usable(self.host, self.port)
        if gone := next((name for name in request.secrets if name not in usable), None):
            raise RefusedRequestError("placeholder", f"secret {gone} was revoked", secret=gone)

    def answered(self, request: CheckedRequest, status: int) -> None:
        """Note the status of a response."""
        if status == 401:
            self._vault.refused(request.secrets)

    def body_of(
        self, request: CheckedRequest, status: int, headers: Headers
    ) -> tuple[BodyFilter, Headers]:
        """Return a filter for the body of a response, and the headers that fit to what it makes."""
        has_body = self.searches and request.method != b"HEAD" and status not in (204, 304)
        codings = [value for name, value in headers if name.lower() == b"content-encoding"]
        body = BodyFilter(b", ".join(codings) if has_body else b"", self.redactor())
        if has_body and (body.decodes or not self.same_length):
            changed = (b"content-length", *([b"content-encoding"] if body.decodes else []))
            headers = [row for row in headers if row[0].lower() not in changed]
        return body, headers

    @property
    def searches(self) -> bool:
        """True if there are secrets, which responses are searched for."""
        return bool(self._vault.stand_ins)

    @property
    def same_length(self) -> bool:
        """True if responses keep their length."""
        return self._vault.patterns.same_length

    def redactor(self) -> Redactor:
        """Make a redactor for one response."""
        return Redactor(lambda: self._vault.patterns)

    def redacted(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers of a response without values."""
        replace = self._vault.patterns.replace
        return [(replace(name), replace(value)) for name, value in headers]

    def _check_rules(self, method: bytes, target: bytes, headers: Headers) -> None:
        """Check a request by the rules for requests to this host."""
        if not self._request_rules:
            return
        try:
            path = clear_path(target)
        except UnclearPathError as error:
            raise _against_rules(f"its path {error}, which servers read in several ways") from None
        self._check_overriding(headers)
        if not allowed(self._request_rules, method.decode("ascii"), path):
            raise _against_rules(f"no rule for {self.host} allows its method and path")

    def _check_overriding(self, headers: Headers) -> None:
        """Refuse headers and trailers that ask for a method or path that no rule has seen."""
        if not self._request_rules:
            return
        if other := next((name for name, _ in headers if _plain(name) in _OVERRIDING), None):
            shown = other.decode("ascii", "replace")
            raise _against_rules(
                f"its header or trailer {shown} may ask for another method or path"
            )

    def _check_form(self, method: bytes, target: bytes, headers: Headers) -> None:
        if not _METHOD.fullmatch(method) or method == b"CONNECT":
            raise bad_request("nsm does not know its method, or it is CONNECT")
        if not target.startswith(b"/") and not (target == b"*" and method == b"OPTIONS"):
            raise bad_request("its target is not a path")
        hosts = [value for name, value in headers if name.lower() == b"host"]
        own = {self.host, f"{self.host}:{self.port}"}
        if len(hosts) != 1 or hosts[0].decode("ascii", "replace").lower() not in own:
            raise bad_request(f"its host is not {self.host}, the server of this connection")


class BodyFilter:
    """The body of one response: decoded and without values. A `RefusedResponseError` says that
    nobody here knows that coding.
    """

    def __init__(self, coding: bytes, redactor: Redactor) -> None:
        coding = coding.strip().lower()
        self._redactor = redactor
        self._decoder = None
        if coding in (b"gzip", b"x-gzip"):
            self._decoder = zlib.decompressobj(wbits=31)
        elif coding == b"deflate":
            self._decoder = zlib.decompressobj()
        elif coding not in (b"", b"identity"):
            raise RefusedResponseError(
                f"the server sent a body with the coding {coding.decode('ascii', 'replace')!r:.40}"
                ", which nsm cannot search for secrets"
            )

    @property
    def decodes(self) -> bool:
        """True if the length changes."""
        return self._decoder is not None

    def feed(self, data: bytes, most: int) -> tuple[bytes, bool]:
        """Take bytes, or nothing to go on with what was taken. Returns the bytes for the client,
        and whether there are more.
        """
        if self._decoder is None:
            return self._redactor.feed(data), False
        try:
            decoded = self._decoder.decompress(self._decoder.unconsumed_tail + data, most)
        except zlib.error:
            raise RefusedResponseError("the server's body is not coded as it says") from None
        if self._decoder.unused_data:
            raise RefusedResponseError("something follows the server's compressed body")
        return self._redactor.feed(decoded), bool(self._decoder.unconsumed_tail)

    def finish(self) -> bytes:
        """Return the last bytes."""
        rest = self._decoder.flush() if self._decoder is not None else b""
        return self._redactor.feed(rest) + self._redactor.finish()


def _against_rules(why: str) -> RefusedRequestError:
    return RefusedRequestError("rule", f"nsm does not pass this request on: {why}")


def shown_path(target: bytes) -> str:
    """The path of a request's target without its query, for people."""
    path = target.partition(b"?")[0][:MAX_PATH].decode("ascii", "replace")
    return "".join(c if c.isprintable() else "?" for c in path)


def bad_request(why: str) -> RefusedRequestError:
    """Make the refusal of a request that no server should get."""
    return RefusedRequestError("bad-request", f"nsm does not pass this request on: {why}")
