"""A program compiled for the Python that will run it."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

import sandbox_agent
from nsmd.jail import BwrapLauncher
from nsmd.jail.program_code import ProgramCode, source_of
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Environment, ImageRoot, ReadOnlyBind


def agent_code() -> ProgramCode:
    return ProgramCode("sandbox_agent", "/run/nsm/agent.py")


def code_of(compiled: bytes) -> CodeType:
    code = marshal.loads(compiled[16:])
    assert isinstance(code, CodeType)
    return code


def file_names(code: CodeType) -> set[str]:
    nested = [c for c in code.co_consts if isinstance(c, CodeType)]
    return {code.co_filename}.union(*(file_names(c) for c in nested))


async def test_a_python_of_another_version_compiles_it(tmp_path: Path) -> None:
    other = "import importlib.util; importlib.util.MAGIC_NUMBER = b'abcd'"
    python = tmp_path / "python"
    # The program comes after -I -S -B -c.
    python.write_text(
        "#!/bin/sh\nprogram=$5\nshift 5\n"
        f'exec "{sys.executable}" -I -S -B -c "{other}; $program" "$@"\n'
    )
    python.chmod(0o755)
    compiled = await agent_code().for_python(str(python))
    assert compiled.startswith(b"abcd")
    assert file_names(code_of(compiled)) == {"/run/nsm/agent.py"}


async def test_the_hosts_python_of_an_environment_is_found_and_no_package_s_own_runs_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "envs/of-packages"
    elsewhere = tmp_path / "project"
    for folder in (place / "bin", elsewhere):
        folder.mkdir(parents=True)
        own = folder / "python3"
        own.write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\nexec "{sys.executable}" "$@"\n')
        own.chmod(0o755)
    (place / "bin/python").symlink_to(sys.executable)
    (place / "bin/python9").symlink_to(elsewhere / "python3")
    prefix = os.path.realpath(sys.base_prefix)
    binds = [
        ReadOnlyBind(source=prefix, target=prefix),
        ReadOnlyBind(source=str(place), target="/env"),
    ]
    code = agent_code()
    compiled = await code.for_python(sys.executable)
    assert await code.for_python("/env/bin/python", binds) == compiled
    for name in ("python3", "python9"):
        assert await code.for_python(f"/env/bin/{name}", binds) == source_of("sandbox_agent")
    assert not (tmp_path / "ran").exists()
    assert not caplog.records


async def test_files_of_an_image_do_not_stand_for_the_hosts_python(tmp_path: Path) -> None:
    top = f"/{Path(sys.executable).parts[1]}"
    image = Environment(
        name="web",
        interpreter="bash",
        program="/bin/bash",
        agent_python=sys.executable,
        image=ImageRoot(directory=str(tmp_path), python=(sys.executable,)),
        binds=(ReadOnlyBind(source=str(tmp_path), target=top),),
    )
    agent = await BwrapLauncher("/usr/bin/bwrap", DEFAULT_JAIL_UID).agent_program(image)
    assert agent == await agent_code().for_python(sys.executable)


async def test_a_python_that_is_killed_is_asked_again(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -KILL $$\n")
    python.chmod(0o755)
    code = agent_code()
    assert await code.for_python(str(python)) == source_of("sandbox_agent")
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    assert await code.for_python(str(python)) != source_of("sandbox_agent")


UPGRADED = """
import sys
from pathlib import Path
import sandbox_agent
import trio
from nsmd.jail.program_code import ProgramCode, source_of

source_of("sandbox_agent")
module = Path(sandbox_agent.__file__).parent / "sandbox/limits.py"
if sys.argv[1:]:
    module.write_text(module.read_text() + sys.argv[1])
code = trio.run(ProgramCode("sandbox_agent", "/run/nsm/agent.py").for_python, sys.executable)
print(b"ANOTHER_NAME" in code)
"""


@pytest.mark.slow
def test_code_is_kept_for_the_next_supervisor_until_a_module_changes(tmp_path: Path) -> None:
    """Also if it changes while a supervisor runs, which goes on with what it has read."""
    folder = tmp_path / "agent"
    shutil.copytree(Path(sandbox_agent.__file__).parent, folder)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)

    def supervisor(*added: str) -> str:
        path = os.pathsep.join([str(folder), *sys.path])
        return subprocess.run(
            [sys.executable, "-c", UPGRADED, *added],
            env={"PATH": os.defpath, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def kept() -> tuple[int, bytes]:
        (file,) = (folder / "__pycache__").glob("sandbox_agent_bundle.*.pyc")
        return file.stat().st_mtime_ns, file.read_bytes()

    assert supervisor() == "False\n"
    first = kept()
    assert supervisor("ANOTHER_NAME = 1\n") == "False\n"
    assert kept() == first, "it was compiled again"
    assert supervisor() == "True\n"
    assert kept()[1] != first[1]
