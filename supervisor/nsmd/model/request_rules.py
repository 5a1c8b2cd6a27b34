"""Rules for requests to one host, `METHOD https://HOST/PATH`; pure.

A path is compared once, in one form. What servers read in several ways is refused: dot segments,
empty segments, backslashes, and escapes of characters that separate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nsm.dataclass import dataclass

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
        """Return whether it allows a request.

        Args:
            path: as `clear_path` returns it.
        """
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
    """Split a rule into methods, host with port, and path.

    Raises:
        RequestRuleError: it is none.
    """
    methods, _, url = text.partition(" ")
    scheme, slashes, rest = url.strip().partition("://")
    host, slash, path = rest.partition("/")
    path = slash + path
    if not _METHODS.fullmatch(methods) or scheme != "https" or not slashes or not host:
        raise RequestRuleError(
            "is no rule for requests, expected for example 'GET https://api.example.org/x/*'"
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

    Raises:
        UnclearPathError: there is none.
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
