"""Sessions of a container image beside those of the preset, and layers that images share.

The image has the Python that runs this, so both sides run the same programs. In turns.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bench import connect, settle
from image_world import Layout, file, layer, libraries_of, python_layer
from measure import Comparison, Findings, LeftOut, Target, alternate_all
from private_supervisor import private_supervisor

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterable

    import nsm
    from bench import Bench

NAME = "a fresh session of an image that preloads numpy, `import numpy` in it, {}"
PEER = "a fresh session of the preset `python`, `pass` in it"
SHARED_NAME = "disk that a second image takes, which has all layers of the first and 20 MB more"
SHARED_PEER = "20 MB"
TORCH_NAME = "first product of two matrices in a session of an image that preloads torch"
TORCH_PEER = "the same where the session imports torch"
MB = 1024 * 1024
MORE_MB = 20
NO_SPARES = "[pool]\nmax_spares = 0\n"
PRODUCT = "import torch; (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()"


def measure(bench: Bench) -> Findings:
    """Without spares first: the pool hides what a fork takes."""
    if find_spec("numpy") is None:
        yield LeftOut(what=NAME.format("without spares"), why="numpy is not installed")
        return
    layers = [python_layer(), packages_layer("numpy")]
    for words, configuration in (("without spares", NO_SPARES), ("with spares ready", "")):
        with (
            private_supervisor("nsm-bench-", configuration) as variables,
            connect(variables) as client,
        ):
            place = Path(variables["XDG_STATE_HOME"]).parent / "images"
            layout = Layout(place)
            layout.add(layers, tag="first", Env=["PATH=/opt/python/bin"])
            add(client, "first", f"oci:{place}:first", ["numpy"])
            yield Comparison(
                name=NAME.format(words),
                peer=PEER,
                pairs=fresh(bench, client),
                unit="ms",
                target=Target(bound="≤", value=1.3),
            )
            if not configuration:
                yield second(client, layout, layers)
            elif find_spec("torch") is None:
                yield LeftOut(what=TORCH_NAME, why="torch is not installed")
            else:
                yield torch(bench, client, layout, layers)


def add(client: nsm.Client, name: str, image: str, preload: Iterable[str] = ()) -> None:
    """Make an environment of an image, and wait for it."""
    row = client.builds.add_packages(name, image=image, preload=list(preload))
    assert row.state == "ready", row.error


def one_shot(client: nsm.Client, env: str, code: str) -> float:
    """Run code in a session of its own; milliseconds."""
    began_s = time.perf_counter()
    result = client.run(code, env=env)
    taken_ms = (time.perf_counter() - began_s) * 1000
    assert result.exit_code == 0, result.stderr
    settle(client)
    return taken_ms


def fresh(bench: Bench, client: nsm.Client) -> tuple[tuple[float, float], ...]:
    """Sessions of the image and of the preset, in turns."""

    def of_image() -> float:
        return one_shot(client, "first", "import numpy")

    def of_preset() -> float:
        return one_shot(client, "python", "pass")

    for _ in range(3):  # templates, and the pool's first look
        of_image()
        of_preset()
    ours, peers = alternate_all([of_image, of_preset], rounds=bench.rounds)
    return tuple(zip(ours, peers, strict=True))


def second(client: nsm.Client, layout: Layout, layers: list[bytes]) -> Comparison:
    """Disk that another image takes beside the first one."""
    before = used_mb(client)
    more = layer(file("more", os.urandom(MORE_MB * MB)))
    layout.add([*layers, more], tag="second", Env=["PATH=/opt/python/bin"])
    add(client, "second", f"oci:{layout.place}:second")
    return Comparison(
        name=SHARED_NAME,
        peer=SHARED_PEER,
        pairs=((used_mb(client) - before, MORE_MB),),
        unit="MB",
        target=Target(bound="≤", value=1.2),
    )


def used_mb(client: nsm.Client) -> float:
    """Disk of all environments together; files with several names count once."""
    (row,) = [each for each in client.builds.list_all() if each.name == "first"]
    assert row.path is not None
    found: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(Path(row.path).parent):
        for name in names:
            status = os.lstat(os.path.join(folder, name))
            found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values()) / MB


def torch(bench: Bench, client: nsm.Client, layout: Layout, layers: list[bytes]) -> Comparison:
    """The first result of torch for the processor, with and without a template that has it."""
    layout.add([*layers, packages_layer("torch")], tag="torch", Env=["PATH=/opt/python/bin"])
    add(client, "warm", f"oci:{layout.place}:torch", ["torch"])
    add(client, "cold", f"oci:{layout.place}:torch")
    one_shot(client, "warm", PRODUCT)
    taken = alternate_all(
        [lambda: one_shot(client, "warm", PRODUCT), lambda: one_shot(client, "cold", PRODUCT)],
        rounds=bench.some_rounds(0.25),
    )
    return Comparison(
        name=TORCH_NAME,
        peer=TORCH_PEER,
        pairs=tuple(zip(*taken, strict=True)),
        unit="ms",
        target=Target(bound="≤", value=0.2),
    )


def packages_layer(*names: str) -> bytes:
    """Make a layer with packages that this Python can import, beside those of `python_layer`."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    place = f"opt/python/lib/{version}"
    members: list[tuple[tarfile.TarInfo, bytes]] = []
    needed: set[str] = set()
    for name in names:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        for folder_path in (package, package.with_name(f"{name}.libs")):
            members += [
                file(f"{place}/{path.relative_to(package.parent)}", path.read_bytes(), 0o755)
                for path in sorted(folder_path.rglob("*"))
                if path.is_file() and path.suffix != ".pyc" and "tests" not in path.parts
            ]
            for path in folder_path.rglob("*.so*"):
                needed.update(libraries_of(str(path)))
    system = sorted(path for path in needed if path.startswith(("/lib", "/usr/lib")))
    return layer(
        *members, *(file(path.lstrip("/"), Path(path).read_bytes(), 0o755) for path in system)
    )
