"""Environments of a valid configuration that this machine lacks something for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from nsmd.environments.devices.device_host import DeviceHost
from nsmd.environments.devices.equipment import find_equipment
from nsmd.host.package_manager import install_command
from nsmd.model.packages import parse_image
from nsmd.model.settings import Settings


def why_unusable(settings: Settings, search_path: str, host: DeviceHost) -> Iterator[str]:
    """Find what devices and images lack: lines that begin with the key.

    They are no mistakes: another machine may use the same file, and what was built before needs
    the source of its image no more.

    Args:
        search_path: value of PATH to find programs on.
    """
    for name, environment in settings.environments.items():
        if environment.devices and (why := find_equipment(environment.devices, host).problem):
            yield f"environments.{name}.devices: {', '.join(environment.devices)}: {why}"
        if environment.image and (why := _why_no_source(environment.image, search_path)):
            yield f"environments.{name}.image: {why}"


def _why_no_source(image: str, search_path: str) -> str:
    """Why an image cannot be read; empty if nothing speaks against it."""
    reference = parse_image(image)
    if reference.transport == "docker":
        if shutil.which("skopeo", path=search_path):
            return ""
        return f"to fetch it, nsm needs skopeo: {install_command('skopeo')}"
    if not os.access(reference.place, os.R_OK):
        return f"{reference.place} is missing or cannot be read"
    return ""
