"""An environment with its devices, or the reason why it cannot have them."""

from __future__ import annotations

from collections.abc import Mapping

from nsm.dataclass import dataclass, replace
from nsmd.environments.devices.device_host import DeviceError, DeviceHost
from nsmd.environments.devices.libraries import (
    IN_IMAGE,
    DriverLibraries,
    binds_in_image,
    find_libraries,
)
from nsmd.environments.devices.nodes import find_nodes
from nsmd.environments.devices.sysfs import described
from nsmd.model.values import Environment, Links, ReadOnlyBind, ShownDevices

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
