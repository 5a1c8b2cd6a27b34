"""GPUs the whole way. They are made up: device nodes that lead to /dev/null, files in the place of
the driver's libraries, and a stand-in for nvidia-ml-py.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import restricted_mounts
from e2e_support import Supervisor, supervisor
from fake_nvml import GIB
from image_world import Layout, copied, layer
from nsm.wire.errors import BadRequestError, EnvironmentUnavailableError
from realjail import needs_bwrap, open_directory

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [pytest.mark.jail, needs_bwrap]

NODES = ("nvidiactl", "nvidia-uvm", "nvidia0")

CONFIG = """
[session]
undo = 3
[environments.ml]
preset = "python"
devices = ["nvidia"]
[environments.second]
preset = "python"
devices = ["nvidia:1"]
"""

SUPPORT = Path(restricted_mounts.__file__).parent


class World(NamedTuple):
    """A supervisor on a made-up host; what /dev has there, and what the GPUs say."""

    it: Supervisor
    devices: Path
    gpus: Path


@pytest.fixture(scope="module")
def world() -> Generator[World]:
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as own,
        open_directory("/var/tmp") as devices,
        open_directory("/var/tmp") as opt,
    ):
        library = opt / "nvidia/lib64/libcuda.so.1"
        library.parent.mkdir(parents=True)
        library.write_text("made up")
        gpus = opt / "gpus.json"
        gpus.write_text("[]")
        variables = {
            "PYTHONPATH": f"{SUPPORT / 'fake_gpu_library'}:{SUPPORT}",
            "NSM_TEST_GPUS": "/opt/gpus.json",
        }
        within = restricted_mounts.command(f"dev:{','.join(NODES)}:{devices}", f"bind:{opt}:/opt")
        config = CONFIG
        with supervisor(Path(own), config=config, variables=variables, within=within) as it:
            yield World(it, devices, gpus)


def test_only_the_environment_that_its_user_gave_it(world: World) -> None:
    look = f"import os; print([os.path.exists('/dev/' + name) for name in {NODES}])"
    with world.it.client() as client:
        assert client.run(look, env="ml").stdout == "[True, True, True]\n"
        assert client.run(look, env="python").stdout == "[False, False, False]\n"
        asked = {"env": "python", "code": look, "devices": ["nvidia"]}
        assert client.call("run", asked)["stdout"] == "[False, False, False]\n"
        rows = {row.name: row for row in client.envs()}
        with pytest.raises(
            EnvironmentUnavailableError, match=r"no /dev/nvidia1; there is nvidia:0"
        ):
            client.run("pass", env="second")
    assert rows["ml"].devices == ("nvidia",)
    assert rows["ml"].description.endswith(", GPU (nvidia)")
    assert rows["ml"].device_nodes == ("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl")
    assert (rows["second"].available, rows["second"].device_nodes) == (False, ())
    shown = world.it.run("nsm", "env", "show", "ml").stdout
    assert "nvidia: /dev/nvidia-uvm, /dev/nvidia0, /dev/nvidiactl" in shown


@pytest.mark.slow
def test_an_added_environment_has_those_that_its_user_named(world: World) -> None:
    bash = os.path.realpath(str(shutil.which("bash")))
    layout = Layout(world.it.directory / "images")
    layout.add([layer(*copied(bash))], Env=[f"PATH={os.path.dirname(bash)}"])
    image = ("--image", f"oci:{layout.place}")
    look = "echo /dev/nvidia*"
    said = world.it.run("nsm", "env", "add", "tools", *image, "--device", "nvidia:0")
    assert said.stdout.startswith("tools is ready: "), said.stderr
    with world.it.client() as client:
        assert client.run(look, env="tools").stdout == (
            "/dev/nvidia-uvm /dev/nvidia0 /dev/nvidiactl\n"
        )
        (row,) = [each for each in client.envs() if each.name == "tools"]
        assert row.devices == ("nvidia:0",)
    assert '"devices": ["nvidia:0"]' in world.it.run("nsm", "audit", "--json").stdout
    # It keeps them until it is added without.
    assert world.it.run("nsm", "reload").returncode == 0
    with world.it.client() as client:
        assert "/dev/nvidia0" in client.run(look, env="tools").stdout
        client.builds.add_packages("tools", image=image[1])
        assert client.run(look, env="tools").stdout == "/dev/nvidia*\n"
        with pytest.raises(BadRequestError, match="`devices`: found '/dev/nvidia0', allowed"):
            client.builds.add_packages("tools", image=image[1], devices=["/dev/nvidia0"])
        with pytest.raises(BadRequestError, match="`devices`: is for packages and images"):
            client.call("env_add", {"reference": "github:me/envs#ml", "devices": ["nvidia"]})


def test_use_of_gpus_is_that_of_the_session_s_processes(world: World) -> None:
    with world.it.client() as client:
        client.run("x = 1", env="ml", session="work")
        client.run("x = 1", env="python", session="plain")
        worker = client.inspect("work").processes[-1].pid
        others = os.getpid()
        world.gpus.write_text(
            json.dumps([{"number": 0, "processes": [[worker, 3 * GIB, 40], [others, GIB, 20]]}])
        )
        rows = {row.name: row for row in client.sessions()}
        found = client.inspect("work")
    metrics = world.it.run("nsm", "status", "metrics").stdout
    assert (rows["work"].gpu_memory_bytes, rows["work"].gpu_percent) == (3 * GIB, 40)
    assert (rows["plain"].gpu_memory_bytes, rows["plain"].gpu_percent) == (None, None)
    assert found.session.gpu_memory_bytes == 3 * GIB
    assert found.gpus is not None
    (gpu,) = found.gpus.gpus
    assert (gpu.number, gpu.memory_bytes, gpu.used_bytes, gpu.percent) == (0, 80 * GIB, 4 * GIB, 60)
    assert 'nsm_session_gpu_memory_bytes{env="ml"} 3.221225472e+09\n' in metrics
    assert 'nsm_gpu_memory_used_bytes{gpu="0"} 4.294967296e+09\n' in metrics
    text = world.it.run("nsm", "inspect", "work").stdout
    assert "has 3072.0 MiB, 40 % of the time; memory is shared and not limited" in text
    assert "GPU 0 (NVIDIA Test 0)" in text
    top = world.it.run("nsm", "top", "--batch", "1", "--sort", "gpu-memory").stdout
    assert "GPU%" in top
    assert "3072.0 MiB" in next(line for line in top.splitlines() if line.startswith("work"))
    assert "3072.0 MiB" in world.it.run("nsm", "ps").stdout
    world.gpus.write_text("[]")
    with world.it.client() as client:
        assert client.inspect("work").session.gpu_memory_bytes == 0


def test_a_session_that_uses_a_gpu_is_neither_undone_nor_forked(world: World) -> None:
    with world.it.client() as client:
        client.run("import os; gpu = os.open('/dev/nvidiactl', os.O_RDWR)", env="ml", session="gpu")
        client.run("y = 2", env="ml", session="gpu")
        undone = world.it.run("nsm", "undo", "gpu")
        assert "code uses a GPU, whose memory a copy would not have" in undone.stderr
        forked = world.it.run("nsm", "fork", "gpu")
        client.kill(["gpu"])
    assert forked.returncode != 0
    if "Landlock" not in forked.stderr:  # Linux before 6.12 forks nothing
        assert "it uses a GPU (/dev/nvidiactl), whose state no fork can have" in forked.stderr


def test_sessions_with_a_gpu_outlive_the_supervisor(world: World) -> None:
    with world.it.client() as client:
        client.run("import os; gpu = os.open('/dev/nvidia0', os.O_RDWR)", env="ml", session="kept")
        client.run("x = 1", env="ml", session="idle")
    assert world.it.run("nsm", "reload").returncode == 0
    with world.it.client() as client:
        assert client.run("print(os.write(gpu, b'x'))", env="ml", session="kept").stdout == "1\n"
        rows = {row.name: row for row in client.sessions()}
        assert rows["idle"].gpu_memory_bytes == 0
        client.kill(["kept", "idle"])
