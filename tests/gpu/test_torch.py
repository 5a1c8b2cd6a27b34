"""Torch in sessions without a GPU, which shows what a template saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu.measured import first_results

if TYPE_CHECKING:
    from e2e_support import Supervisor

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
