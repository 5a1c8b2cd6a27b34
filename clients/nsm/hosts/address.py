"""Hosts: their addresses, and what `[hosts]` of config.toml says of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from nsm import paths
from nsm.wire.decode import DecodeError, decode
from nsm.wire.errors import HostError
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

PROJECT_WAYS = ("path", "copy", "none")
"""Ways in which the project of a client gets to a host."""

MAX_CONFIG_BYTES = 1024 * 1024

_SCHEME = "ssh://"
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._%:-]{0,253})")
"""Names of users and hosts. One that began with `-` would be an option of ssh."""

_EXAMPLE = "ssh://user@host:port"


class RemoteHost(NamedTuple):
    """A host that has sessions.

    Attributes:
        name: as people name it: a name in config.toml, or the address.
        user, port: None is ssh's own choice.
        ssh: the program with options that come before all others.
        program: path of nsm there; None to look for it.
        project: how the client's project gets there (`PROJECT_WAYS`).
        directories: directories there of projects here, by path.
    """

    name: str
    host: str
    user: str | None = None
    port: int | None = None
    ssh: tuple[str, ...] = ("ssh",)
    program: str | None = None
    project: str = "path"
    directories: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Name of its directory: the same for the same connection."""
        facts = json.dumps([self.host, self.user, self.port, self.ssh])
        return hashlib.sha256(facts.encode()).hexdigest()[:12]

    @property
    def destination(self) -> tuple[str, ...]:
        """Arguments of ssh that name it."""
        options: tuple[str, ...] = () if self.port is None else ("-p", str(self.port))
        user: tuple[str, ...] = () if self.user is None else ("-l", self.user)
        return (*options, *user, "--", self.host)

    def facts(self) -> dict[str, Any]:
        """The host as plain values, which `nsm.wire.decode` reads."""
        return {**self._asdict(), "directories": list(map(list, self.directories))}


class _HostTable(NamedTuple):
    """A host's table in config.toml, whose fields are as in `RemoteHost`."""

    address: str | None = None
    ssh: str | None = None
    program: str | None = None
    project: str = "path"
    directories: dict[str, str] = {}  # noqa: RUF012  # nobody changes it


def find_host(wanted: str) -> RemoteHost:
    """Find the host that an address or a name in config.toml means."""
    ssh = _words("NSM_SSH", os.environ.get("NSM_SSH") or "ssh")
    if wanted.startswith(_SCHEME):
        found = _parse(wanted)._replace(ssh=ssh)
    else:
        table = _configured().get(wanted)
        if table is None:
            if "://" in wanted:
                raise _no_address(wanted, f"it does not begin with {_SCHEME}")
            raise HostError(
                f"there is no host {wanted!r} in config.toml",
                hint=f"Add [hosts.{wanted}] there, or write its address: {_SCHEME}{wanted}",
            )
        found = _of_table(wanted, table, ssh)
    way = os.environ.get("NSM_HOST_PROJECT") or found.project
    if way not in PROJECT_WAYS:
        raise HostError(
            f"NSM_HOST_PROJECT is {way!r}, expected {', '.join(PROJECT_WAYS)}",
            hint=f"Set it to {_other_way(way)}.",
        )
    return found._replace(project=way)


def configured_hosts() -> list[str]:
    """The names of the hosts in config.toml; a `HostError` if it cannot be read."""
    return sorted(_configured())


def _parse(address: str) -> RemoteHost:
    try:
        parts = urlsplit(address)
        user, host, port = parts.username, parts.hostname, parts.port
    except ValueError as error:
        raise _no_address(address, str(error)) from None
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.password is not None:
        raise _no_address(address, "only a user, a host and a port can be in it")
    # `hostname` is in lower case, and names in ssh's configuration need not be.
    written = parts.netloc.rpartition("@")[2]
    if host is not None and not written.startswith("["):
        host = written.partition(":")[0]
    for word in (host, user):
        if word is not None and not _NAME.fullmatch(word) and not _is_ipv6(word):
            raise _no_address(address, f"{word!r} is not a name for a host or user")
    if not host:
        raise _no_address(address, "it has no host")
    return RemoteHost(address, host, user, port)


def _is_ipv6(word: str) -> bool:
    return bool(re.fullmatch(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9._-]+)?", word))


def _no_address(address: str, why: str) -> HostError:
    return HostError(f"{address!r} is not an address of a host: {why}", hint=f"Write {_EXAMPLE}.")


def _configured() -> dict[str, dict[str, Any]]:
    import tomllib  # noqa: PLC0415  # only for hosts that have a name

    path = os.path.join(paths.config_dir(), "config.toml")
    try:
        with open(path, "rb") as file:
            table = tomllib.loads(file.read(MAX_CONFIG_BYTES).decode())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise HostError(
            f"{path} cannot be read: {error}", hint="`nsm config check` says more."
        ) from error
    hosts: object = table.get("hosts", {})
    if not isinstance(hosts, dict):
        raise HostError(f"{path}: [hosts] is not a table", hint="Write [hosts.NAME].")
    named = cast("dict[str, object]", hosts)
    return {
        name: cast("dict[str, Any]", entry)
        for name, entry in named.items()
        if isinstance(entry, dict)
    }


def _of_table(name: str, table: Mapping[str, Any], ssh: tuple[str, ...]) -> RemoteHost:
    try:
        found = decode(_HostTable, table)
    except DecodeError as error:
        raise _wrong_table(name, str(error)) from error
    if unknown := sorted(table.keys() - set(_HostTable._fields)):
        known = ", ".join(sorted(_HostTable._fields))
        raise _wrong_table(name, f"{unknown[0]}: unknown key; known are {known}")
    if found.project not in PROJECT_WAYS:
        other = _other_way(found.project)
        raise _wrong_table(name, f"project: found {found.project!r}, expected {other}")
    absolute = (found.program or "/", *found.directories, *found.directories.values())
    if not all(path.startswith("/") for path in absolute):
        raise _wrong_table(name, "program and directories: expected absolute paths")
    return _parse(found.address or f"{_SCHEME}{name}")._replace(
        name=name,
        ssh=ssh if found.ssh is None else _words(f"hosts.{name}.ssh", found.ssh),
        program=found.program,
        project=found.project,
        directories=tuple(sorted(found.directories.items())),
    )


def _wrong_table(name: str, problem: str) -> HostError:
    hint = "Correct config.toml; `nsm config check` reads it."
    return HostError(f"hosts.{name}.{problem}", hint=hint)


def _other_way(way: object) -> str:
    """Name the way to write in place of one that there is not."""
    if way == "git":  # which nsm had once
        return '"copy": nsm no longer pushes commits to hosts'
    return f"one of {', '.join(PROJECT_WAYS)}"


def _words(place: str, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        hint = 'Such as "ssh -J gate".'
        raise HostError(f"{place} is not a command: {error}", hint=hint) from None
    if not words:
        raise HostError(f"{place} is empty", hint='Such as "ssh -J gate".')
    return words
