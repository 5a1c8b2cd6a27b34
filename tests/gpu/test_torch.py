"""Torch in sessions without a GPU, which shows what a template saves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from e2e_support import Supervisor

ROUNDS = 5

MATMUL = """
import torch
a = torch.full((1024, 1024), 0.5, device={device!r})
print(float((a @ a)[0, 0]))
"""


def first_results(it: Supervisor, device: str) -> tuple[float, float]:
    """Seconds to the first product of two matrices: the quickest fork and the quickest start, in
    turns. They are printed, and compared by people: others may use the machine.
    """
    took_s: dict[str, list[float]] = {"fork": [], "start": []}
    with it.client() as client:
        client.run("pass", env="fork")  # the template, and the files in memory
        client.run("import torch", env="start")
        for _ in range(ROUNDS):
            for env, times in took_s.items():
                began_s = time.monotonic()
                result = client.run(MATMUL.format(device=device), env=env)
                times.append(time.monotonic() - began_s)
                assert (result.stdout, result.stderr) == ("256.0\n", "")
    fork_s, start_s = (min(times) for times in took_s.values())
    print(
        f"\nfirst result on {device}: fork {fork_s:.3f} s, start {start_s:.3f} s, "
        f"{start_s / fork_s:.1f} times as long"
    )
    return fork_s, start_s


COMPILED = """
import torch
def f(x):
    return torch.sin(x) + 2 * torch.cos(x)
x = torch.arange(64, dtype=torch.float32, device={device!r})
print(torch.allclose(torch.compile(f)(x), f(x)))
"""


def test_a_template_imports_torch(on_processor: Supervisor) -> None:
    with on_processor.client() as client:
        loaded = client.run("import sys; print('torch' in sys.modules)", env="fork")
    assert (loaded.stdout, loaded.notes) == ("True\n", ())
    fork_s, start_s = first_results(on_processor, "cpu")
    assert fork_s < start_s


def test_torch_compiles(on_processor: Supervisor) -> None:
    """Compile a function, which takes a C++ compiler, and files below /tmp."""
    for env in ("fork", "start"):
        with on_processor.client() as client:
            result = client.run(COMPILED.format(device="cpu"), env=env)
        assert result.stdout == "True\n", result.stderr
