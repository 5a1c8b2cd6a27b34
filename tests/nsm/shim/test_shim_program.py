"""`nsm-mcp` as a program: what it loads, its descriptors, its command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsm import jsonlines
from nsm._version import program_version


def test_the_shim_loads_no_heavy_module() -> None:
    """30 ms and 1.5 times the memory of an empty Python; see the architecture's budgets."""
    code = "import nsm.shim, sys; print(*sys.modules)"
    loaded = set(
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {PATHS!r}; {code}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    )
    heavy = {"json", "re", "typing", "dataclasses", "subprocess", "pathlib", "logging", "asyncio"}
    assert not loaded & (heavy | {"cbor2", "trio", "pydantic", "mcp", "argparse"})


PATHS = [str(Path(jsonlines.__file__).parents[1])]


def test_nothing_else_can_write_to_the_client() -> None:
    code = (
        "import os, nsm.shim as s\n"
        "stdin, stdout = s._claim_stdio()\n"
        "print('stray', flush=True); os.system('echo stray child')\n"
        "assert os.read(0, 1) == b''\n"
        "os.write(stdout, os.read(stdin, 5))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"wire!", capture_output=True, check=True
    )
    assert done.stdout == b"wire!"
    assert done.stderr == b"stray\nstray child\n"


@pytest.mark.parametrize("closed", [0, 1])
def test_closed_standard_descriptors_are_told(closed: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m nsm.shim {closed}>&-', sys.executable],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"stdin and stdout must be open" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["--version"], 0, f"nsm-mcp {program_version()}\n", ""),
        (["--help"], 0, "usage: nsm-mcp", ""),
        (["serve"], 2, "", "usage: nsm-mcp"),
        (["--stdio", "serve"], 2, "", "usage: nsm-mcp"),
    ],
)
def test_the_shim_takes_few_options(arguments: list[str], code: int, out: str, err: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsm.shim", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert done.stdout.startswith(out)
    assert done.stderr.startswith(err)
    assert bool(done.stdout) == bool(out)
