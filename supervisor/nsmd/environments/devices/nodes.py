"""Device nodes of GPUs, and what the kernel says of them, below the host's root directory."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from nsm import paths
from nsm.dataclass import dataclass
from nsmd.jail.user import JailUser
from nsmd.model.values import DeviceNode, Links, ReadOnlyBind

LDCONFIG_TIMEOUT_S = 10.0
"""Time for ldconfig to print its cache; it takes 2 ms."""


class DeviceError(Exception):
    """Devices cannot be shown; the message says why and what to do, without a final dot."""


def _accessible(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHost:
    """The host as devices are looked for.

    Attributes:
        root: its root directory; other than `/` in tests only.
        can_use: returns whether the jails' user can read and write a device.
        home: HOME of the supervisor's user, symlinks resolved; nothing of it is shown.
    """

    root: str = "/"
    can_use: Callable[[str], bool] = _accessible
    jail_user: str = "your user"
    home: str = "/root"

    def real(self, path: str) -> str:
        """Real path of an absolute path of the host."""
        return path if self.root == "/" else self.root + path

    def names(self, path: str) -> list[str]:
        """List the names in a directory, sorted; empty if it cannot be read."""
        try:
            return sorted(os.listdir(self.real(path)))
        except OSError:
            return []

    def read(self, path: str) -> str:
        """Read a small file of the kernel; empty if it cannot be read."""
        try:
            with open(self.real(path), encoding="utf-8", errors="replace") as file:
                return file.read(65536)
        except OSError:
            return ""

    def device(self, path: str) -> os.stat_result | None:
        """Status of a character device; None if there is none."""
        with suppress(OSError):
            status = os.stat(self.real(path))
            if stat.S_ISCHR(status.st_mode):
                return status
        return None

    def followed(self, path: str) -> str:
        """The same path of the host without symbolic links; itself if nothing is there."""
        real = os.path.realpath(self.real(path))
        top = "" if self.root == "/" else os.path.realpath(self.root)
        return real.removeprefix(top) or "/"

    def loader_cache(self) -> str:
        """The libraries that the loader knows, as `ldconfig -p` prints them."""
        for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
            with suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(
                    [self.real(program), "-p"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    cwd="/",
                    env={},
                    timeout=LDCONFIG_TIMEOUT_S,
                    check=False,
                )
                return done.stdout
        return ""


def device_host(user: JailUser) -> DeviceHost:
    """Make the host as it is for jails of a user."""
    name = "your user" if user.uid == os.geteuid() else f"user {user.uid}, as whom root's jails run"
    return DeviceHost(can_use=user.can_use, jail_user=name, home=os.path.realpath(paths.home()))


CONTROL, UVM = "/dev/nvidiactl", "/dev/nvidia-uvm"
"""Without the second, CUDA says that it is not available, and programs silently use the processor.
"""

WSL = "/dev/dxg"
"""The GPUs of Windows, whatever their maker, in the Windows Subsystem for Linux."""

KFD = "/dev/kfd"
"""The compute interface of all of AMD's GPUs."""

_OPTIONAL = "/dev/nvidia-uvm-tools"
"""Device for profilers."""

CAPABILITIES = "/dev/nvidia-caps"
"""Rights to parts of a GPU that is divided (Multi-Instance GPU)."""

_GPU = re.compile(r"nvidia([0-9]+)")
_RENDER = re.compile(r"renderD[0-9]+")
_MINOR = re.compile(r"DeviceFileMinor:\s*([0-9]+)")

_MAKE_NODES = "`sudo nvidia-modprobe -c 0 -u` makes the devices; at boot, nvidia-persistenced does"


def find_nodes(words: Sequence[str], host: DeviceHost) -> tuple[DeviceNode, ...]:
    """Find the device nodes that an environment's `devices` mean, sorted by path."""
    paths: set[str] = set()
    kinds = {word.partition(":")[0] for word in words}
    if "nvidia" in kinds:
        paths |= _nvidia([word for word in words if word.startswith("nvidia")], host)
    if "amd" in kinds:
        paths |= _amd(host)
    if "dri" in kinds:
        paths |= _render_nodes(host)
    return tuple(_node(path, host) for path in sorted(paths))


def is_wsl(host: DeviceHost) -> bool:
    """Return whether GPUs are reached through Windows here."""
    return host.device(WSL) is not None and host.device(CONTROL) is None


def _node(path: str, host: DeviceHost) -> DeviceNode:
    found = host.device(path)
    if found is None:
        raise DeviceError(f"{path} is gone; `nsm env` looks again")
    return DeviceNode(
        source=host.real(path),
        path=path,
        number=(os.major(found.st_rdev), os.minor(found.st_rdev)),
    )


def _nvidia(words: Sequence[str], host: DeviceHost) -> set[str]:
    if is_wsl(host):
        if words != ["nvidia"]:
            raise DeviceError(f'{WSL} has all GPUs of Windows: ask for "nvidia", without a number')
        return {_usable(WSL, host)}
    if host.device(CONTROL) is None:
        if version := host.read("/proc/driver/nvidia/version"):
            about = version.splitlines()[0].strip()
            raise DeviceError(
                f"the driver is loaded ({about:.80}), but there is no {CONTROL}: {_MAKE_NODES}"
            )
        raise DeviceError(
            f"there is no {CONTROL}: NVIDIA's driver is not installed, or its module is not loaded "
            "(`sudo modprobe nvidia`). In a container, start it with its GPUs (`--gpus all`)"
        )
    numbers = [found[1] for name in host.names("/dev") if (found := _GPU.fullmatch(name))]
    numbers = [number for number in numbers if host.device(f"/dev/nvidia{number}")]
    if not numbers:
        raise DeviceError(f"there is {CONTROL}, but no /dev/nvidia0: {_MAKE_NODES}")
    if words != ["nvidia"]:
        wanted = [word.partition(":")[2] for word in words]
        if missing := [number for number in wanted if number not in numbers]:
            there = ", ".join(f"nvidia:{number}" for number in sorted(numbers, key=int))
            raise DeviceError(f"there is no /dev/nvidia{missing[0]}; there is {there}")
        numbers = wanted
    if host.device(UVM) is None:
        raise DeviceError(
            f"there is no {UVM}, and without it CUDA silently uses the processor: {_MAKE_NODES}"
        )
    paths = {_usable(path, host) for path in (CONTROL, UVM)}
    paths |= {_usable(f"/dev/nvidia{number}", host) for number in numbers}
    if host.device(_OPTIONAL) is not None and host.can_use(host.real(_OPTIONAL)):
        paths.add(_OPTIONAL)
    return paths | set(_capabilities(numbers, host))


def _capabilities(numbers: Sequence[str], host: DeviceHost) -> Iterator[str]:
    """Nodes of parts of these GPUs that the jails' user may read. The others are for those who
    divide GPUs.
    """
    minors: set[str] = set()
    for number in numbers:
        top = host.real(f"/proc/driver/nvidia/capabilities/gpu{number}")
        for folder, _, files in os.walk(top):
            if "access" in files:
                inside = os.path.join(folder, "access").removeprefix(host.real("/"))
                minors.update(_MINOR.findall(host.read("/" + inside.lstrip("/"))))
    for minor in sorted(minors):
        path = f"{CAPABILITIES}/nvidia-cap{minor}"
        found = host.device(path)
        if found is not None and found.st_mode & stat.S_IROTH:
            yield path


def _amd(host: DeviceHost) -> set[str]:
    if host.device(KFD) is None:
        raise DeviceError(
            f"there is no {KFD}: the module amdgpu is not loaded, or its GPU cannot compute"
        )
    nodes = [path for path in _all_render_nodes(host) if _driver_of(path, host) == "amdgpu"]
    if not nodes:
        raise DeviceError(f"there is {KFD}, but no /dev/dri/renderD* of the module amdgpu")
    return {_usable(path, host) for path in (KFD, *nodes)}


def _render_nodes(host: DeviceHost) -> set[str]:
    nodes = _all_render_nodes(host)
    if not nodes:
        raise DeviceError("there is no /dev/dri/renderD*: no driver of a GPU is loaded")
    return {_usable(path, host) for path in nodes}


def _all_render_nodes(host: DeviceHost) -> list[str]:
    paths = [f"/dev/dri/{name}" for name in host.names("/dev/dri") if _RENDER.fullmatch(name)]
    return [path for path in paths if host.device(path) is not None]


def _driver_of(path: str, host: DeviceHost) -> str:
    link = f"/sys/class/drm/{os.path.basename(path)}/device/driver"
    return os.path.basename(host.followed(link))


def _usable(path: str, host: DeviceHost) -> str:
    real = host.real(path)
    if not host.can_use(real):
        found = os.stat(real)
        mode = stat.S_IMODE(found.st_mode)
        raise DeviceError(
            f"{path} (mode {mode:04o}, owner {found.st_uid}, group {found.st_gid}) is closed to "
            f"{host.jail_user}: join its group (`sudo usermod -aG GROUP USER`, then log in again), "
            "or have udev open it"
        )
    return path


_TOPOLOGY = "/sys/devices/virtual/kfd"


def described(
    nodes: Sequence[DeviceNode], host: DeviceHost
) -> tuple[tuple[ReadOnlyBind, ...], Links]:
    """Directories of /sys that describe these devices, and the links by which drivers find them.

    libdrm follows /sys/dev/char/MAJOR:MINOR, and ROCm reads /sys/class/kfd. NVIDIA's driver needs
    nothing of /sys.
    """
    directories: dict[str, None] = {}
    links: dict[str, str] = {}
    for node in nodes:
        if node.path == KFD:
            directories[_TOPOLOGY] = None
            links["/sys/class/kfd/kfd"] = f"{_TOPOLOGY}/kfd"
        elif node.path.startswith("/dev/dri/"):
            name = os.path.basename(node.path)
            there = host.followed(f"/sys/class/drm/{name}")
            device = os.path.dirname(os.path.dirname(there))
            if not device.startswith("/sys/devices/"):
                continue  # no sysfs here
            directories[device] = None
            links[f"/sys/class/drm/{name}"] = there
            links[f"/sys/dev/char/{node.number[0]}:{node.number[1]}"] = there
    shown = [path for path in directories if os.path.isdir(host.real(path))]
    binds = tuple(ReadOnlyBind(source=host.real(path), target=path) for path in sorted(shown))
    return binds, tuple(sorted(links.items()))
