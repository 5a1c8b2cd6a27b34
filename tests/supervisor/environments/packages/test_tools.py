"""pip and uv are found on the host."""

from __future__ import annotations

from pathlib import Path

from nsmd.environments.interpreters import FoundInterpreter
from nsmd.environments.packages.tools import PLACE, find_python_tool


def python(prefix: Path) -> FoundInterpreter:
    return FoundInterpreter(program=str(prefix / "bin/python3"), version=(3, 11, 2), prefixes=())


def test_the_pip_of_the_interpreter_comes_first_and_alone(tmp_path: Path) -> None:
    package = tmp_path / "lib/python3.11/site-packages/pip"
    package.mkdir(parents=True)
    found = find_python_tool(python(tmp_path), "", "pip")
    assert found is not None
    assert found.shown[0] == (str(package), f"{PLACE}/pip"), "not what lies beside it"


def test_else_the_one_that_python_brings_along_as_a_wheel(tmp_path: Path) -> None:
    bundled = tmp_path / "lib/python3.11/ensurepip/_bundled"
    bundled.mkdir(parents=True)
    wheel = bundled / "pip-24.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    found = find_python_tool(python(tmp_path), "", "pip")
    assert found is not None
    assert found.shown[0] == (str(wheel), f"{PLACE}/{wheel.name}")
    command = found.install("/build/x", builds=False)
    assert f"{PLACE}/{wheel.name}/pip" in command
