"""Checks of what the configuration names: secrets, GPUs, images."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator

import trio

from nsm.checks import HostCheck, ok, warn
from nsmd.environments.devices.equipment import find_equipment
from nsmd.environments.devices.nodes import CONTROL, DeviceHost
from nsmd.host.nvml import GpuReader
from nsmd.host.package_manager import install_command
from nsmd.model.packages import parse_image
from nsmd.model.secrets import SecretSource
from nsmd.model.settings import Settings, configured_secrets
from nsmd.model.values import has_nvidia


def check_secrets(settings: Settings, search_path: str) -> HostCheck | None:
    """Check the secrets; None if there are none."""
    if not settings.secrets:
        return None
    if problems := list(_problems(settings, search_path)):
        return warn("; ".join(problems), "`nsm secrets test NAME` reads one as for a session.")
    return ok(f"{', '.join(settings.secrets)}; `nsm secrets test NAME` reads one, as for a session")


def _problems(settings: Settings, search_path: str) -> Iterator[str]:
    for name, secret in configured_secrets(settings).items():
        if why := _why_not(secret.source, search_path):
            yield f"{name}: {why}"
    for name, entry in settings.environments.items():
        if entry.secrets and entry.network_rule.mode != "allow":
            yield f"environment {name} has secrets, and no list of hosts as its network"
    if settings.box.secrets and isinstance(settings.box.net, str):
        yield "boxes have secrets, and [box] net is not a list of hosts"


def _why_not(source: SecretSource, search_path: str) -> str:
    first = source.words[0]
    match source.kind:
        case "command" | "keyring":
            program = first if source.kind == "command" else "secret-tool"
            return "" if shutil.which(program, path=search_path) else f"{program} is not found"
        case "file":
            try:
                mode = os.stat(os.path.expanduser(first)).st_mode
            except OSError as error:
                return f"{first}: {error.strerror}"
            if mode & (stat.S_IRGRP | stat.S_IROTH):
                return f"{first} can be read by other users (`chmod 600 {first}`)"
            return ""
        case "environment":
            return ""  # of the supervisor, which may have another one


_PAGE = "docs/how-to/images.md"

_COMPILERS = ("cc", "gcc", "clang")


def check_devices(
    settings: Settings, host: DeviceHost, reader: GpuReader | None = None
) -> Iterator[HostCheck]:
    """Make a row for each environment with devices, and for what its code may need besides."""
    wanted = {name: each.devices for name, each in settings.environments.items() if each.devices}
    if not wanted:
        if host.device(CONTROL) is not None:
            yield ok(f"an NVIDIA GPU is here, and no environment has it ({_PAGE})")
        return
    usable = False
    for name, words in wanted.items():
        equipment = find_equipment(words, host)
        asked = ", ".join(words)
        if equipment.shown is None:
            yield warn(f"{asked}: {equipment.problem}", of=name)
            continue
        usable = usable or has_nvidia(equipment.shown)
        nodes = ", ".join(node.path for node in equipment.shown.nodes)
        libraries = equipment.libraries
        where = f"; the driver's libraries are in {libraries.directory}" if libraries else ""
        yield ok(f"{asked}: {nodes}{where}", of=name)
    if usable:
        yield from _read(reader or GpuReader())
        yield _check_compiler(host)


def _read(reader: GpuReader) -> Iterator[HostCheck]:
    reading = trio.run(reader.read)
    if reading.problem:
        yield warn(f"memory and use are not shown: {reading.problem}", of="use")
    for gpu in reading.gpus:
        name = f"/dev/nvidia{gpu.number}"
        if gpu.problem:
            yield warn(f"{name}: {gpu.problem}", of="use")
        else:
            size_mb, used_mb = (gpu.memory_bytes or 0) >> 20, (gpu.used_bytes or 0) >> 20
            yield ok(f"{name}: {gpu.name}, {used_mb} of {size_mb} MiB in use", of="use")


def _check_compiler(host: DeviceHost) -> HostCheck:
    for name in _COMPILERS:
        if os.access(host.real(path := f"/usr/bin/{name}"), os.X_OK):
            return ok(f"{path}, for `torch.compile`", of="compiler")
    return ok(
        "none in /usr/bin, so `torch.compile` does not work",
        f"If you need it: {install_command('gcc')}, and the headers of the environment's Python",
        of="compiler",
    )


def why_unusable(settings: Settings, search_path: str, host: DeviceHost) -> Iterator[str]:
    """Find what devices and images lack: lines that begin with the key.

    They are no mistakes: another machine may use the same file, and what was built before needs the
    source of its image no more.
    """
    for name, environment in settings.environments.items():
        if environment.devices and (why := find_equipment(environment.devices, host).problem):
            yield f"environments.{name}.devices: {', '.join(environment.devices)}: {why}"
        if environment.image and (why := _why_no_source(environment.image, search_path)):
            yield f"environments.{name}.image: {why}"


def _why_no_source(image: str, search_path: str) -> str:
    """Return why an image cannot be read; empty if nothing speaks against it."""
    reference = parse_image(image)
    if reference.transport == "docker":
        if shutil.which("skopeo", path=search_path):
            return ""
        return f"to fetch it, nsm needs skopeo: {install_command('skopeo')}"
    if not os.access(reference.place, os.R_OK):
        return f"{reference.place} is missing or cannot be read"
    return ""
