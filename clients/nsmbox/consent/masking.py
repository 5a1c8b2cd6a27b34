"""Values of variables that may be shown. Pure.

Screens are shared and logs kept, so that what gives access to something is not shown there, by
its name or by what it looks like.
"""

from __future__ import annotations

import re

MASKED = "********"
"""Replacement for a secret value, of the same length for all."""

_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH(?!OR)|COOKIE|"
    r"(?:^|_)(?:PASS|PAT|PWD)$",
    re.IGNORECASE,
)
"""`PWD` as a whole word says where one is; `DB_PWD` is a password."""

_USER_IN_URL = re.compile(r"(?<=://)[^/?#\s]*@")
"""RFC 3986's userinfo. To the last `@`: people forget to encode the one in their password."""


def names_secret(name: str) -> bool:
    """Return whether the value of a variable of this name must not be shown."""
    return name != "PWD" and _SECRET_NAME.search(name) is not None


def masked(name: str, value: str, *, secret: bool = False) -> str:
    """A value as it may be shown.

    Args:
        secret: it is one, whatever its name.
    """
    if value and (secret or names_secret(name)):
        return MASKED
    return _USER_IN_URL.sub(f"{MASKED}@", value)
