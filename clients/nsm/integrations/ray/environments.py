"""Configuration and environments of a node's supervisor; all functions block.

nsm names an environment from packages by a hash of what it is made of: its lock, the path and the
version of its Python, and the platform. So what one node has built is put under that name on
another, and a node that needs another hash builds its own from the same lock.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm import Client, paths
from nsm.wire.errors import EnvironmentUnavailableError
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nsm import PackageArguments

COMPLETE = "environment.json"
"""File that an environment has once it is complete."""

PACKAGE_SETTINGS = ("pip", "uv")
"""Directories in ~/.config that say where packages come from."""


class Shipment(NamedTuple):
    """An environment that was built, as bytes.

    Attributes:
        name: for `env`.
        directory: its name in the store: the hash of its contents.
        lock: name of its lock's file.
    """

    name: str
    directory: str
    archive: bytes
    lock: str
    lock_text: bytes


def toml(table: Mapping[str, Any], place: tuple[str, ...] = ()) -> str:
    """Write tables of texts, numbers, booleans and lists as TOML, whose values are JSON's."""
    tables: dict[str, Any] = {
        name: value for name, value in table.items() if isinstance(value, dict)
    }
    values = {name: value for name, value in table.items() if name not in tables}
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items()]
    if place and lines:
        lines.insert(0, f"[{'.'.join(json.dumps(name) for name in place)}]")
    lines += [toml(each, (*place, name)) for name, each in tables.items()]
    return "\n".join(lines) + "\n"


def write_config(config: Mapping[str, Any], *, max_sessions: int) -> None:
    """Write `config.toml` of the supervisor that this process is going to start."""
    own = os.path.join(paths.home(), ".config")
    directory = paths.config_dir()
    os.makedirs(directory, mode=0o700)
    for name in PACKAGE_SETTINGS:
        if os.path.isdir(os.path.join(own, name)):
            os.symlink(os.path.join(own, name), os.path.join(os.path.dirname(directory), name))
    session = {"max_sessions": max_sessions, **config.get("session", {})}
    text = toml({**config, "session": session})
    paths.replace_file(os.path.join(directory, "config.toml"), text.encode())


def build(client: Client, wanted: Mapping[str, PackageArguments], *, ship: bool) -> list[Shipment]:
    """Make environments from packages, unless they are there.

    Args:
        ship: pack them for other nodes.

    Raises:
        EnvironmentUnavailableError: one cannot be made.
    """
    shipments: list[Shipment] = []
    for name, packages in wanted.items():
        row = client.builds.add_packages(name, **packages)
        if row.state != "ready" or row.path is None:
            raise _refusal(
                name, row.cause or row.state, row.hint, is_made_per_node="image" in packages
            )
        if ship and os.path.dirname(row.path) == store():
            shipments.append(pack(name, row.path, row.lock))
    return shipments


def check(client: Client, configured: Mapping[str, Any]) -> None:
    """Wait for the environments that the configuration names."""
    for row in client.builds.list_all():
        if row.going_on and row.name in configured:
            client.builds.log(row.name, lambda _: None, follow=True)
    built = {row.name: row for row in client.builds.list_all()}
    for each in client.envs():
        if each.name in configured and not each.available:
            build = built.get(each.name)
            why = (build and build.cause) or each.problem or "this node does not have it"
            table = configured[each.name]
            is_made_per_node = "image" in table or "flake" in table
            raise _refusal(each.name, why, build and build.hint, is_made_per_node=is_made_per_node)


def _refusal(
    name: str, why: str, hint: str | None, *, is_made_per_node: bool
) -> EnvironmentUnavailableError:
    """Make the error for an environment that this node cannot provide."""
    hints = [hint] if hint else []
    if is_made_per_node:
        hints.append(
            "Each node makes environments of images and of Nix by itself. Prepare all nodes, or "
            f"have it made from packages, which one node ships to the others: "
            f"`Pool(environments={{{name!r}: {{'pip': [...]}}}})`."
        )
    return EnvironmentUnavailableError(
        f"the environment {name!r} cannot be made on {socket.gethostname()}: {why}",
        hint=" ".join(hints),
    )


def store() -> str:
    """Directory of environments from packages."""
    return os.path.join(paths.data_dir(), "envs")


def pack(name: str, path: str, lock: str) -> Shipment:
    """Read an environment and its lock."""
    directory = os.path.basename(path)
    archive = subprocess.run(
        ["tar", "-C", os.path.dirname(path), "-cf", "-", directory], stdout=-1, cwd="/", check=True
    ).stdout
    with open(lock, "rb") as file:
        return Shipment(name, directory, archive, os.path.basename(lock), file.read())


def unpack(shipment: Shipment) -> None:
    """Put an environment and its lock where the supervisor looks for them."""
    locks = os.path.join(paths.config_dir(), "locks")
    os.makedirs(locks, mode=0o700, exist_ok=True)
    paths.replace_file(os.path.join(locks, shipment.lock), shipment.lock_text)
    if os.path.exists(os.path.join(store(), shipment.directory, COMPLETE)):
        return
    os.makedirs(store(), mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".shipped-", dir=store()) as place:
        subprocess.run(
            ["tar", "-C", place, "-xf", "-"], input=shipment.archive, cwd="/", check=True
        )
        # Whole or not at all. If another process was faster, its copy is as good.
        with suppress(OSError):
            os.rename(
                os.path.join(place, shipment.directory), os.path.join(store(), shipment.directory)
            )
