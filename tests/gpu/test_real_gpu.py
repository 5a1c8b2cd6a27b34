"""CUDA in sessions, on a real GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpu.test_torch import COMPILED, first_results

if TYPE_CHECKING:
    from e2e_support import Supervisor

HOLD = "import torch; held = torch.ones(256 << 20, dtype=torch.uint8, device='cuda')"

FILL = """
import torch
held = []
while True:
    held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
"""


def test_a_fork_has_its_first_result_in_a_fraction_of_a_start(on_gpu: Supervisor) -> None:
    fork_s, start_s = first_results(on_gpu, "cuda")
    assert fork_s < start_s


def test_the_template_has_no_gpu_open(on_gpu: Supervisor) -> None:
    with on_gpu.client() as client:
        client.run(HOLD, env="fork")
        (row,) = [row for row in client.envs() if row.name == "fork"]
    assert row.templates
    for template in row.templates:
        links = [os.readlink(fd) for fd in Path(f"/proc/{template.pid}/fd").iterdir()]
        assert not [link for link in links if "nvidia" in link]


def test_memory_is_shown_and_free_once_the_session_has_ended(on_gpu: Supervisor) -> None:
    with on_gpu.client() as client:
        client.run(HOLD, env="fork", session="holds")
        found = client.inspect("holds")
        assert found.gpus is not None
        assert found.gpus.problem is None, found.gpus.problem
        before = sum(gpu.used_bytes or 0 for gpu in found.gpus.gpus)
        assert (found.session.gpu_memory_bytes or 0) >= 256 << 20
        client.run("pass", env="fork", session="looks")
        client.kill(["holds"])
        after = client.inspect("looks").gpus
        assert after is not None
        assert before - sum(gpu.used_bytes or 0 for gpu in after.gpus) >= 256 << 20


def test_a_session_with_a_context_is_not_copied(on_gpu: Supervisor) -> None:
    with on_gpu.client() as client:
        client.run(HOLD, env="fork", session="held")
    forked = on_gpu.run("nsm", "fork", "held")
    assert forked.returncode != 0
    assert "it uses a GPU (/dev/nvidia" in forked.stderr or "Landlock" in forked.stderr


def test_sessions_that_take_all_memory_are_told(on_gpu: Supervisor) -> None:
    with on_gpu.client() as client:
        for name in ("one", "two"):
            result = client.run(FILL, env="fork", session=name)
            assert result.exit_code == 1
            assert [note for note in result.notes if note.startswith("gpu: GPU memory ran out")]
        client.kill(["one", "two"])
        assert client.run(HOLD, env="fork").exit_code == 0


def test_torch_compiles_for_the_gpu(on_gpu: Supervisor) -> None:
    """Compile a function, which takes a C compiler, that Python's headers, and ldconfig."""
    with on_gpu.client() as client:
        result = client.run(COMPILED.format(device="cuda"), env="fork")
    assert result.stdout == "True\n", result.stderr


def test_without_devices_there_is_no_gpu(on_gpu: Supervisor) -> None:
    with on_gpu.client() as client:
        result = client.run("import torch; torch.ones(1, device='cuda')", env="none")
    assert result.exit_code == 1
    (note,) = result.notes
    assert note.startswith("gpu: this environment has no GPU; fork, start have one")
