"""Devices in real jails of each kind. The GPUs are made up: their nodes lead to /dev/null."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_world import GpuWorld, nvidia_world
from nsmd.environments.devices.equipment import DeviceFinder
from nsmd.jail.templates import TemplateLauncher, open_templates
from nsmd.model.values import Environment
from policy.checks import LOOK, check_devices, check_limits, check_mounts
from realjail import environments, is_fork, needs_bwrap, new_launcher, open_directory, open_session
from venvs import in_venv, make_venv

pytestmark = [pytest.mark.jail, needs_bwrap]

OPENED = ["/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl"]

USE = f"""
import os, stat
for path in {OPENED}:
    fd = os.open(path, os.O_RDWR)
    assert stat.S_ISCHR(os.fstat(fd).st_mode) and os.write(fd, b"x") == 1
    os.close(fd)
print(open("/opt/nvidia/lib64/libcuda.so.1").read())
print(os.path.exists("/dev/nvidia0"), os.access("/opt/nvidia/lib64", os.W_OK))
"""

HOLDS = "import os; held = os.open('/dev/nvidia-uvm', os.O_RDWR)"
"""A module that uses the GPU while it is imported, as far as this host can have it."""


@pytest.fixture
def world() -> Generator[GpuWorld]:
    with open_directory("/var/tmp") as root:
        yield nvidia_world(root)


@pytest.fixture
def python(world: GpuWorld) -> Environment:
    bare = replace(environments()["python"], devices=("nvidia:1",))
    return DeviceFinder(world.host).equip(bare)


async def check(environment: Environment, launcher: TemplateLauncher | None) -> None:
    """Compare a session's policy with what its jail has, and use its devices."""
    async with open_session(environment, launcher=launcher) as session:
        assert is_fork(session.jail) is (launcher is not None)
        seen = await session.run(LOOK)
        assert seen.stderr == ""
        found = json.loads(seen.stdout)
        used = await session.run(USE)
    assert (used.stderr, used.stdout) == ("", "libcuda.so 580.95.05\nFalse False\n")
    policy = found["policy"]
    assert set(OPENED) <= set(policy["devices"])
    assert "/dev/nvidia0" not in policy["devices"]
    check_devices(policy, found)
    check_mounts(policy, found)
    check_limits(policy, found)
    assert (policy["limits"]["memory_mb"], policy["limits"]["process_memory_mb"]) == (512, 4096)


async def test_a_jail_of_its_own(python: Environment) -> None:
    await check(python, None)


async def test_forks_of_a_template(python: Environment) -> None:
    async with open_templates(new_launcher()) as forking:
        assert isinstance(forking, TemplateLauncher)
        await check(python, forking)
        async with open_session(environments()["python"], launcher=forking) as other:
            seen = await other.run("import os; print(os.path.exists('/dev/nvidiactl'))")
        assert seen.stdout == "False\n"
        assert len(forking.templates) == 2


async def test_a_template_never_uses_the_gpu(python: Environment) -> None:
    """A module that does is left out and imported in sessions; the others are preloaded."""
    with open_directory("/var/tmp") as directory:
        make_venv(directory, {"holds": HOLDS, "good": "value = 1"})
        environment = in_venv(python, directory, "holds", "good")
        async with open_templates(new_launcher()) as forking:
            assert isinstance(forking, TemplateLauncher)
            async with open_session(environment, launcher=forking) as session:
                assert is_fork(session.jail)
                code = "import sys; print('holds' in sys.modules, 'good' in sys.modules)"
                assert (await session.run(code)).stdout == "False True\n"
                later = await session.run("import holds; print(holds.held > 2)")
                assert later.stdout == "True\n"
            (text,) = forking.unloaded[environment.name]
            pids = [template.forker_pid for template in forking.templates]
            links = [fd.readlink() for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir()]
    assert text.startswith("holds: it uses the GPU (/dev/nvidia-uvm) while it is imported")
    assert not [link for link in links if "nvidia" in str(link)]
