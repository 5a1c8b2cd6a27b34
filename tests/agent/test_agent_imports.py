"""Times of imports, in results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent_process import AGENT, AgentProcess
from venvs import make_venv

if TYPE_CHECKING:
    from collections.abc import Generator

SLOW_S = 0.06
SLOW = f"import time; time.pass_for_imports({SLOW_S})"
CLOCK = """
import sys, time
real, now_s = time.monotonic, 0.0
def monotonic():
    asks = sys._getframe(1).f_globals["__name__"]
    return now_s if asks == "sandbox.workers.python.library" else real()
def pass_for_imports(seconds):
    global now_s
    now_s += seconds
time.monotonic, time.pass_for_imports = monotonic, pass_for_imports
"""
"""A clock that stands still for whoever times imports, so that no import is slow by chance."""

MODULES = {
    "clock_of_imports": CLOCK,
    "slow": f"{SLOW}; import slow_too",
    "slow_too": SLOW,
    "quick": "",
    "broken": f"{SLOW}; 1/0",
}


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Generator[AgentProcess]:
    """An agent on a Python with slow modules."""
    directory = tmp_path_factory.mktemp("venv")
    packages = make_venv(directory, MODULES)
    (packages / "clock.pth").write_text("import clock_of_imports\n")
    (packages / "whole").mkdir()
    (packages / "whole/__init__.py").write_text("")
    (packages / "whole/part.py").write_text(SLOW)
    workspace = tmp_path_factory.mktemp("workspace")
    (workspace / "own.py").write_text(SLOW)
    python = str(directory / "bin/python3")
    agent = AgentProcess(
        [python, "-I", str(AGENT), "--workspace", str(workspace)], workspace=workspace
    )
    try:
        yield agent
    finally:
        agent.close()


def told(agent: AgentProcess, code: str, **options: Any) -> dict[str, float]:
    """Times of imports that the result of some code has, in a new interpreter."""
    reply = agent.python(code, reset=True, **options)
    assert reply.exit_code == 0, reply.stderr
    found: dict[str, float] = reply.frame.get("imports", {})
    return found


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import slow", ["slow"]),
        ("import slow_too, slow, quick", ["slow_too", "slow"]),
        ("import whole.part as part", ["whole.part"]),
        ("from whole import part", ["whole.part"]),
        ("import importlib; importlib.import_module('slow')", ["slow"]),
        ("def f():\n    import slow\nf(); f()", ["slow"]),
        ("import asyncio\nawait asyncio.sleep(0)\nimport slow", ["slow"]),
        ("import quick", []),
        ("import own", []),
        ("try:\n    import broken\nexcept ZeroDivisionError: pass", []),
        ("import threading as t\nx = t.Thread(target=__import__, args=('slow',))\nx.start()", []),
        ("import os\nif os.fork() == 0:\n    import slow; os._exit(0)\n_ = os.wait()", []),
    ],
)
def test_slow_imports_of_installed_modules_are_told(
    imports: AgentProcess, code: str, modules: list[str]
) -> None:
    found = told(imports, code)
    assert list(found) == modules
    for module in modules:
        with_another = module == "slow" and "slow_too" not in found  # which it imports itself
        assert found[module] == pytest.approx(2 * SLOW_S if with_another else SLOW_S)


def test_each_import_is_told_once(imports: AgentProcess) -> None:
    assert list(told(imports, "import slow_too")) == ["slow_too"]
    reply = imports.python("import slow_too, slow")
    assert list(reply.frame["imports"]) == ["slow"]
    assert "imports" not in imports.python("import slow").frame


def test_a_one_shot_tells_them(imports: AgentProcess) -> None:
    assert list(told(imports, "import slow", one_shot=True)) == ["slow"]


def test_a_traceback_shows_nothing_of_it(imports: AgentProcess) -> None:
    code = """
import traceback
try:
    import broken
except ZeroDivisionError:
    traceback.print_exc()
"""
    lines = imports.python(code, reset=True).stderr.splitlines()
    assert len([line for line in lines if line.startswith("  File ")]) == 2, lines
    lines = imports.python("import nonesuch", reset=True).stderr.splitlines()
    assert len([line for line in lines if line.startswith("  File ")]) == 1, lines


def test_forged_times_of_imports_are_bounded(imports: AgentProcess) -> None:
    code = """
import json, os, struct
def say(module, seconds):
    text = json.dumps({"type": "imported", "module": module, "seconds": seconds}).encode()
    os.write(FD, struct.pack(">I", len(text)) + text)
for FD in range(100, 1100):
    try:
        kind = os.readlink(f"/proc/self/fd/{FD}")
    except OSError:
        continue
    if kind.startswith("socket:"):
        break
for name in ("a b", "; rm -rf ~", "x" * 101, "a..b", "\\u0430", "", None, 7, ["x"]):
    say(name, 1.0)
for seconds in (-1, 1e10, "1", None, True):
    say("seconds", seconds)
for number in range(1000):
    say(f"m{number}", 0.25)
"""
    found = told(imports, code)
    assert found == {f"m{number}": 0.25 for number in range(16)}
