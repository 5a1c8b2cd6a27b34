"""The user's language and time zone: all that jails get of the supervisor's own environment. The
zone may also be the host's, of `/etc/localtime`, which jails do not show.

A value is passed on only if it means the same in a jail. For a missing locale, shells would
complain at each start; for a missing time zone, the C library uses UTC under another name
(tzset(3)). Text is UTF-8 in both directions, so other encodings are not passed on.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Mapping

Variables = tuple[tuple[str, str], ...]

_LOCALE_NAMES = (
    "LANG",
    "LC_ADDRESS",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_IDENTIFICATION",
    "LC_MEASUREMENT",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NAME",
    "LC_NUMERIC",
    "LC_PAPER",
    "LC_TELEPHONE",
    "LC_TIME",
)
"""Names as in locale(7)."""

_LOCALE = re.compile(r"[A-Za-z0-9_]{1,32}\.(?:UTF-8|utf8)(?:@[A-Za-z0-9]{1,16})?", re.IGNORECASE)
_ZONE = re.compile(r":?([A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,3})")
_RULE = re.compile(
    r"[A-Za-z]{3,10}[+-]?[0-9:]{1,9}(?:[A-Za-z]{3,10}(?:[+-]?[0-9:]{1,9})?"
    r"(?:,[JM]?[0-9.]{1,9}(?:/[+-]?[0-9:]{1,9})?){0,2})?"
)
"""A time zone that needs no file: ``CET-1CEST,M3.5.0,M10.5.0/3`` (tzset(3))."""

_UTC = ("UTC", "UCT", "Zulu", "Universal")
"""Names of the zone that jails have without a variable."""

_LC_ALL_MASK = 0x1FBF  # locale.h of the GNU C library, all but LC_ALL itself


def passed_on(
    variables: Mapping[str, str],
    *,
    root: str = "/",
    is_locale: Callable[[str], bool] | None = None,
) -> Variables:
    """Choose the variables of the supervisor's environment for its sessions."""
    known = is_locale or _is_locale
    chosen: list[tuple[str, str]] = []
    for name in _LOCALE_NAMES:
        value = variables.get(name, "")
        if (name, value) == ("LC_CTYPE", "C.UTF-8"):
            continue  # the default of jails; mostly our own Python set it (PEP 538)
        if _LOCALE.fullmatch(value) and _is_shown(value, root) and known(value):
            chosen.append((name, value))
    zone = variables.get("TZ") or _zone_of_host(root)
    if _RULE.fullmatch(zone) or _is_zone(zone, root):
        chosen.append(("TZ", zone))
    return tuple(chosen)


def locale_part(variables: Iterable[tuple[str, str]]) -> Variables:
    """Variables of an environment for language and time zone."""
    return tuple((name, value) for name, value in variables if name in (*_LOCALE_NAMES, "TZ"))


def _is_shown(locale: str, root: str) -> bool:
    """Return whether a jail, which has the host's /usr, can have that locale."""
    folder = os.path.join(root, "usr/lib/locale")
    name, _, rest = locale.partition(".")
    _, at, modifier = rest.partition("@")
    normal = f"{name}.utf8{at}{modifier}"  # localedef(1) uses this name for compiled locales
    return any(
        os.path.exists(os.path.join(folder, each)) for each in ("locale-archive", locale, normal)
    )


def _is_zone(value: str, root: str) -> bool:
    found = _ZONE.fullmatch(value)
    return found is not None and os.path.isfile(
        os.path.join(root, "usr/share/zoneinfo", found.group(1))
    )


def _zone_of_host(root: str) -> str:
    """Name of the zone that the host has for all programs; empty if it is UTC or unknown."""
    try:
        zone = os.readlink(os.path.join(root, "etc/localtime")).rpartition("/zoneinfo/")[2]
    except OSError:  # no link: some systems copy the file, and have the name beside it
        try:
            with open(os.path.join(root, "etc/timezone"), "rb") as file:
                zone = file.read(256).decode(errors="replace").strip()
        except OSError:
            return ""
    return "" if zone.removeprefix("Etc/") in _UTC else zone


def _is_locale(name: str) -> bool:
    """Ask the C library (newlocale(3)); the process's own locale stays unchanged."""
    libc = ctypes.CDLL(None)
    libc.newlocale.restype = ctypes.c_void_p
    libc.newlocale.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    made = libc.newlocale(_LC_ALL_MASK, name.encode(), None)
    if not made:
        return False
    libc.freelocale.argtypes = (ctypes.c_void_p,)
    libc.freelocale(made)
    return True
