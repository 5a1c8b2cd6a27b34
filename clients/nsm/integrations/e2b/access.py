"""Admission of clients of `nsm e2b serve`, by the head of a request, before its body is read.

A client shows its key to the API. To a sandbox it shows the token that it got when it made or found
that sandbox: the key's signature of the sandbox's id, so that a server which is started again knows
it, too.
"""

from __future__ import annotations

import binascii
import hmac
import json
from base64 import b64decode
from http import HTTPStatus
from typing import TYPE_CHECKING

from nsm.dataclass import replace
from nsm.http.access import AdmittedRequest, Answer, Headers, all_of, refuse_page

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nsm.http.token import TokenFile

SANDBOX = b"e2b-sandbox-id"
PORT = b"e2b-sandbox-port"
"""Headers that say which sandbox, and which program in it, a request is for."""

_TOKENS = (b"x-access-token", b"e2b-traffic-access-token")

RPC = (b"/process.Process/", b"/filesystem.Filesystem/")
"""Beginnings of paths that Connect serves."""

ENVD_PORT = "49983"
CODE_PORT = "49999"

USER = "user"
"""The only user of a sandbox."""


class Key:
    """One key, with a scope of its own."""

    def __init__(self, name: str, secret: TokenFile) -> None:
        self.name = name
        self.secret = secret

    def __repr__(self) -> str:
        return f"<Key {self.name}>"

    @property
    def scope(self) -> str:
        """Scope of the sessions of its clients."""
        return f"e2b-{self.name}"

    def access_token(self, sandbox_id: str) -> str:
        """The token for one sandbox."""
        return self.secret.signature(f"e2b sandbox {sandbox_id}".encode())


class KeyCheck:
    """Admission of clients (`nsm.http.access.Guard`)."""

    def __init__(self, hosts: Collection[str], keys: Sequence[Key]) -> None:
        self._hosts = hosts
        self._keys = keys

    def __repr__(self) -> str:
        return f"<KeyCheck of {len(self._keys)}>"

    def check(self, method: bytes, target: bytes, headers: Headers) -> AdmittedRequest | Answer:
        """Admit a request, or make its answer."""
        del method
        refusal = refuse_page(headers, self._hosts)
        if refusal is not None:
            return replace(refusal, text=_said(target, refusal.status, refusal.text))
        if self.key_of(headers) is None:
            what = "the token of this sandbox" if all_of(headers, SANDBOX) else "E2B_API_KEY"
            return _no(target, f"{what} is missing or wrong", "key")
        for value in all_of(headers, b"authorization"):
            if (user := _user(value)) not in (None, "", USER):
                text = f"a sandbox of nsm has one user, named {USER}; {user!r:.40} is not there"
                return _no(target, text, "user")
        return AdmittedRequest()

    def key_of(self, headers: Headers) -> Key | None:
        """Return the key that a request belongs to; None if it shows none."""
        sandboxes = all_of(headers, SANDBOX)
        if not sandboxes:
            shown = all_of(headers, b"x-api-key")
            return next(
                (key for key in self._keys if len(shown) == 1 and key.secret.matches(shown[0])),
                None,
            )
        sandbox_id = sandboxes[0].decode("latin-1")
        shown = [value for name in _TOKENS for value in all_of(headers, name)]
        if len(sandboxes) > 1 or not shown:
            return None
        for key in self._keys:
            token = key.access_token(sandbox_id).encode()
            if token and all(hmac.compare_digest(token, value) for value in shown):
                return key
        return None


def _user(value: bytes) -> str | None:
    """The user of basic authorization, by which clients say as whom to act."""
    scheme, _, rest = value.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        return b64decode(rest, validate=True).partition(b":")[0].decode("utf-8", "replace")
    except binascii.Error:
        return None


def _no(target: bytes, text: str, why: str) -> Answer:
    status = HTTPStatus.UNAUTHORIZED
    return Answer(status=status, text=_said(target, status, text), why=why)


def _said(target: bytes, status: HTTPStatus, text: str) -> str:
    """The reason of a refusal in JSON; clients of Connect show what is not JSON as it is."""
    if target.startswith(RPC):
        return text
    return json.dumps({"code": status.value, "message": text})
