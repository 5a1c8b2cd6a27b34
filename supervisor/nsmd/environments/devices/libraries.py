"""Libraries of NVIDIA's driver, wherever they lie.

They belong to the kernel's module, and so to the host: packages such as torch do not bring them.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator

from nsm.dataclass import dataclass
from nsmd.environments.devices.device_host import DeviceError, DeviceHost
from nsmd.environments.interpreters import in_base_system
from nsmd.host.paths import is_within, why_private
from nsmd.model.values import ReadOnlyBind

CUDA = "libcuda.so.1"

IN_IMAGE = "/run/nsm/gpu"
"""Directory of the driver's libraries in the jails of a container image, which has none."""

_STORE = "/nix/store"

_DIRECTORIES = (
    "/run/opengl-driver/lib",  # NixOS
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/opt/nvidia/lib64",
    "/opt/nvidia/lib",
)
"""Directories of these libraries that the loader may not know."""

_ABI = {"x86_64": "x86-64", "aarch64": "AArch64"}
"""Words of `ldconfig -p` for this machine's own libraries."""

_CACHED = re.compile(rf"\s{re.escape(CUDA)} \(([^)]*)\) => (\S.*)")

_OF_DRIVER = re.compile(
    r"(libcuda|libcudadebugger|libnvidia-[a-z0-9-]+|libnvcuvid|libnvoptix)\.so(\.[0-9.]+)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLibraries:
    """Libraries of the driver.

    Attributes:
        directory: directory in which programs find them.
        known: the loader finds them by itself.
        binds: what a jail has to show beyond the base system.
        state: differs if they are others.
    """

    directory: str
    known: bool
    binds: tuple[ReadOnlyBind, ...]
    state: str


def find_libraries(host: DeviceHost) -> DriverLibraries:
    """Find the driver's libraries as the loader does, else in the usual directories.

    Raises:
        DeviceError: there are none, or a jail must not show them.
    """
    cached = _cached(host)
    path = next((path for path in (cached, *_usual(host)) if path), None)
    if path is None:
        raise DeviceError(
            f"there is no {CUDA}, neither in the loader's cache (`ldconfig -p`) nor in "
            f"{', '.join(_DIRECTORIES)}: install the driver's libraries (Debian: libcuda1)"
        )
    found = os.stat(host.real(path))
    directory = os.path.dirname(path)
    return DriverLibraries(
        directory=directory,
        known=path == cached,
        binds=tuple(_binds(path, host)),
        state=f"{host.followed(path)} {found.st_ino} {found.st_mtime_ns}",
    )


def binds_in_image(libraries: DriverLibraries, host: DeviceHost) -> tuple[ReadOnlyBind, ...]:
    """The libraries one by one, for jails that show nothing else of the host's directories."""
    names = [name for name in host.names(libraries.directory) if _OF_DRIVER.fullmatch(name)]
    return tuple(
        ReadOnlyBind(
            source=os.path.realpath(host.real(f"{libraries.directory}/{name}")),
            target=f"{IN_IMAGE}/{name}",
        )
        for name in names
    )


def _cached(host: DeviceHost) -> str | None:
    wanted = _ABI.get(platform.machine(), "")
    for line in host.loader_cache().splitlines():
        found = _CACHED.search(line)
        if found and wanted in found[1] and os.path.exists(host.real(found[2].strip())):
            return found[2].strip()
    return None


def _usual(host: DeviceHost) -> Iterator[str]:
    for directory in _DIRECTORIES:
        path = f"{directory}/{CUDA}"
        if os.path.exists(host.real(path)):
            yield path


def _binds(path: str, host: DeviceHost) -> Iterator[ReadOnlyBind]:
    """The directory of a library, and that to which its links lead.

    On NixOS its libraries are links into the store, and need others from there, which only the
    store as a whole is sure to have: everyone on the host can read it.
    """
    directory = os.path.dirname(path)
    places = dict.fromkeys((directory, os.path.dirname(host.followed(path))))
    for place in places:
        if in_base_system(place):
            continue
        target, source = place, host.followed(place)
        if is_within(source, _STORE):
            yield ReadOnlyBind(source=host.real(_STORE), target=_STORE)
            if is_within(target, _STORE):
                continue
        elif why := why_private(source, host.home):
            raise DeviceError(f"the driver's libraries lie in {source}, which {why}")
        yield ReadOnlyBind(source=host.real(source), target=target)
