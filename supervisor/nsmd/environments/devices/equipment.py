"""An environment with its devices, or the reason why it cannot have them.

The libraries of NVIDIA's driver belong to the kernel's module, and so to the host: packages such as
torch do not bring them. Devices may come, go or get another driver while the supervisor runs.
"""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from nsm.dataclass import dataclass, replace
from nsmd.environments.devices.nodes import (
    CAPABILITIES,
    DeviceError,
    DeviceHost,
    described,
    find_nodes,
)
from nsmd.host.event_loop import BoundedReads
from nsmd.host.paths import ANY, WatchedPaths, is_within, why_private
from nsmd.host.source_watcher import SourceWatcher
from nsmd.jail.interpreters import in_base_system
from nsmd.model.values import (
    ClientIdentity,
    Environment,
    Links,
    ReadOnlyBind,
    ShownDevices,
)

log = logging.getLogger(__name__)


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

_OF_DRIVER = r"(libcuda|libcudadebugger|libnvidia-[a-z0-9-]+|libnvcuvid|libnvoptix)\.so(\.[0-9.]+)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLibraries:
    """Libraries of the driver.

    Attributes:
        directory: directory in which programs find them.
        binds: what a jail has to show beyond the base system.
    """

    directory: str
    known: bool
    binds: tuple[ReadOnlyBind, ...]
    state: str


def find_libraries(host: DeviceHost) -> DriverLibraries:
    """Find the driver's libraries as the loader does, else in the usual directories."""
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
    names = [name for name in host.names(libraries.directory) if re.fullmatch(_OF_DRIVER, name)]
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


Words = tuple[str, ...]

LEAST_PROCESS_MB = 4096
"""Least memory of one process where an environment has devices, MiB. Drivers reserve addresses that
they never fill: torch with CUDA takes 1.5 GiB of RLIMIT_DATA, and fails with 1 GiB.
"""

_SEARCH_PATH = "LD_LIBRARY_PATH"

_VERSION = "/proc/driver/nvidia/version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """Devices, and all that jails have to show for them.

    Attributes:
        problem: why they cannot be shown; empty if they can.
        binds, links: of jails with the host's base system, beyond it.
        image_binds: the same in jails of container images.
        libraries: libraries of NVIDIA's driver; None if it is not needed.
    """

    problem: str = ""
    shown: ShownDevices | None = None
    binds: tuple[ReadOnlyBind, ...] = ()
    image_binds: tuple[ReadOnlyBind, ...] = ()
    links: Links = ()
    libraries: DriverLibraries | None = None


def find_equipment(words: Words, host: DeviceHost) -> Equipment:
    """Look for devices and for what their drivers need."""
    try:
        nodes = find_nodes(words, host)
        binds, links = described(nodes, host)
        if not any(word.startswith("nvidia") for word in words):
            shown = ShownDevices(nodes=nodes)
            return Equipment(shown=shown, binds=binds, image_binds=binds, links=links)
        libraries = find_libraries(host)
    except DeviceError as error:
        return Equipment(problem=str(error))
    except OSError as error:
        return Equipment(problem=f"its devices cannot be looked at: {error}")
    version = host.read(_VERSION).split("\n", 1)[0]
    return Equipment(
        shown=ShownDevices(nodes=nodes, driver=f"{version} {libraries.state}"),
        binds=(*binds, *libraries.binds),
        image_binds=(*binds, *binds_in_image(libraries, host)),
        links=links,
        libraries=libraries,
    )


def equip(environment: Environment, equipment: Equipment) -> Environment:
    """Make the environment with these devices. One that cannot have them has a problem: with the
    processor in the place of a GPU, code would be slow for no visible reason.
    """
    if environment.problem is not None:
        return environment
    if equipment.problem:
        wanted = ", ".join(environment.devices)
        return replace(environment, problem=f"its devices ({wanted}): {equipment.problem}")
    binds = equipment.binds if environment.image is None else equipment.image_binds
    missing_mb = LEAST_PROCESS_MB - environment.memory_mb
    return replace(
        environment,
        # Models choose by it.
        description=f"{environment.description}, GPU ({', '.join(environment.devices)})",
        shown_devices=equipment.shown,
        binds=tuple(dict.fromkeys((*environment.binds, *binds))),
        links=tuple(dict.fromkeys((*environment.links, *equipment.links))),
        variables=_variables(environment, equipment.libraries),
        reserved_mb=max(environment.reserved_mb, missing_mb),
    )


def _variables(
    environment: Environment, libraries: DriverLibraries | None
) -> tuple[tuple[str, str], ...]:
    """Variables by which programs find the driver's libraries where the loader does not."""
    if libraries is None or (libraries.known and environment.image is None):
        return environment.variables
    directory = libraries.directory if environment.image is None else IN_IMAGE
    given: Mapping[str, str] = dict(environment.variables)
    search = ":".join(path for path in (directory, given.get(_SEARCH_PATH, "")) if path)
    # Triton, which compiles for `torch.compile`, asks ldconfig otherwise.
    ours = {_SEARCH_PATH: search, "TRITON_LIBCUDA_PATH": directory}
    return tuple({**given, **ours}.items())


WATCHED = ("/dev", "/dev/dri", CAPABILITIES)
"""Directories in which devices come and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceScan:
    """Devices at one moment, and what to watch for changes."""

    equipment: Equipment
    places: WatchedPaths


class DeviceFinder:
    """Finder of the devices of environments; without such environments it looks for none.

    Attributes:
        changed: called after each change; quick.
    """

    def __init__(self, host: DeviceHost) -> None:
        self._host = host
        self._found: dict[Words, Equipment] = {}
        self._watching: SourceWatcher | None = None
        self._reads = BoundedReads()
        self.changed: Callable[[], None] = _nothing

    def __repr__(self) -> str:
        return f"<DeviceFinder of {len(self._found)} wishes>"

    def equip(self, environment: Environment) -> Environment:
        """Make an environment with its devices. Waits a moment when these are new."""
        words = environment.devices
        if not words:
            return environment
        found = self._found.get(words)
        if found is None:
            find = partial(find_equipment, words, self._host)
            try:
                found = self._reads.read(words, find)
            except TimeoutError:
                found = Equipment(problem="the search for them takes too long")
            self._found[words] = found
            self._watch(words)
        return equip(environment, found)

    def watch(self, watching: SourceWatcher) -> None:
        """Look again from now on whenever devices or the driver change."""
        self._watching = watching
        for words in self._found:
            self._watch(words)

    async def search_again(self, _client: ClientIdentity | None = None) -> None:
        """Look again now, since somebody asks."""
        if self._watching is not None:
            await self._watching.look(*(("devices", words) for words in self._found))

    def _watch(self, words: Words) -> None:
        if self._watching is not None:
            self._watching.keep(
                ("devices", words),
                f"devices {', '.join(words)}",
                partial(self._scan, words),
                partial(self._keep_scan, words),
                lambda: _DeviceScan(equipment=self._found[words], places={}),
            )

    def _scan(self, words: Words) -> _DeviceScan:
        equipment = find_equipment(words, self._host)
        return _DeviceScan(equipment=equipment, places=dict(self._places(equipment)))

    def _places(self, equipment: Equipment) -> Iterator[tuple[str, frozenset[str]]]:
        for directory in WATCHED:
            if os.path.isdir(real := self._host.real(directory)):
                yield real, frozenset((ANY,))
        if equipment.libraries is not None:
            yield self._host.real(equipment.libraries.directory), frozenset((CUDA,))

    def _keep_scan(self, words: Words, scan: _DeviceScan, _unwatched: str | None) -> None:
        if scan.equipment != self._found[words]:
            self._found[words] = scan.equipment
            log.info("devices %s: %s", ", ".join(words), scan.equipment.problem or "changed")
            self.changed()


def _nothing() -> None:
    """Default for `changed`."""
