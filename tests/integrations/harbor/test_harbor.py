"""Environment of Harbor, with the package itself: a task from its image to its reward."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from image_world import Layout, folder, layer, programs_layer
from nsm.integrations.harbor import NsmTaskEnvironment
from nsm.wire.errors import BadRequestError

if TYPE_CHECKING:
    from pathlib import Path

    from e2e_support import Supervisor

PROGRAMS = ("bash", "cat", "find", "ls", "mkdir", "rm", "sh", "sleep", "tar", "gzip", "chmod")


@pytest.fixture(scope="module")
def image(shared: Supervisor) -> str:
    """An image with a few of the host's programs."""
    layout = Layout(shared.directory / "images")
    parts = [programs_layer(*PROGRAMS), layer(folder("app"))]
    layout.add(parts, Env=["PATH=/bin"], WorkingDir="/app")
    return f"oci:{layout.place}"


def environment(place: Path, image: str | None, **settings: object) -> NsmTaskEnvironment:
    (place / "environment").mkdir(exist_ok=True)
    return NsmTaskEnvironment(
        environment_dir=place / "environment",
        environment_name="hello",
        session_id="hello__1__env",
        trial_paths=TrialPaths(trial_dir=place / "trial"),
        task_env_config=EnvironmentConfig(docker_image=image, **settings),
        network_policy=NetworkPolicy(network_mode=NetworkMode.NO_NETWORK),
        persistent_env={"TASK": "hello"},
    )


def test_a_task_from_its_image_to_its_reward(tmp_path: Path, image: str) -> None:
    async def trial() -> None:
        task = environment(tmp_path, image, workdir="/work", memory_mb=256)
        (tmp_path / "environment" / "data.txt").write_text("of the task")
        await task.start(force_build=False)
        try:
            said = await task.exec('echo "$PWD $TASK $MORE"; cat data.txt', env={"MORE": "yes"})
            assert said.stdout == "/work hello yes\nof the task"
            await task.upload_dir(tmp_path / "environment", "/tests/deep")
            assert await task.is_file("/tests/deep/data.txt")
            # As root, which is the session's own user, code writes anywhere in its copy.
            command = (
                "mkdir -p /logs/verifier && echo 1 >/logs/verifier/reward.txt && echo >/bin/new"
            )
            assert (await task.exec(command, user="root")).return_code == 0
            await task.download_dir("/logs/verifier", tmp_path / "out")
            assert (tmp_path / "out" / "reward.txt").read_text() == "1\n"
            assert (await task.exec("exit 3")).return_code == 3
            assert (await task.exec("sleep 60", timeout_sec=1)).return_code == 124
            with pytest.raises(BadRequestError, match="one user"):
                await task.exec("true", user="agent")
        finally:
            await task.stop(delete=True)
        with pytest.raises(RuntimeError, match="stopped"):
            await task.exec("true")

    asyncio.run(trial())


def test_a_task_needs_an_image(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="docker_image"):
        environment(tmp_path, None)


def test_harbor_finds_it_by_its_path() -> None:
    path = "nsm.integrations.harbor:NsmTaskEnvironment"
    found = EnvironmentFactory.resource_capabilities(None, path)
    assert found == NsmTaskEnvironment.resource_capabilities()
