"""CUDA in sessions, on a real GPU."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from e2e_support import Supervisor

MATMUL = """
import torch
a = torch.full((2048, 2048), 0.5, device="cuda")
print(float((a @ a)[0, 0]))
"""


def test_a_fork_has_its_first_result_in_a_fraction_of_a_start(it: Supervisor) -> None:
    """The target is a fifth. Printed and compared loosely: others may use the machine."""
    took_s: dict[str, list[float]] = {"ml": [], "slow": []}
    with it.client() as client:
        client.run("pass", env="ml")  # the template
        for _ in range(3):
            for env, times in took_s.items():
                began_s = time.monotonic()
                result = client.run(MATMUL, env=env)
                times.append(time.monotonic() - began_s)
                assert (result.stdout, result.stderr) == ("512.0\n", "")
    fork_s, start_s = (min(times) for times in took_s.values())
    print(f"first result on the GPU: fork {fork_s:.2f} s, start {start_s:.2f} s")
    assert fork_s < start_s


def test_without_devices_there_is_no_gpu(it: Supervisor) -> None:
    with it.client() as client:
        result = client.run("import torch; print(torch.cuda.is_available())", env="none")
    assert result.stdout == "False\n"
