"""Programs that compile while they run, and what takes more than a moment: `pytest -m slow`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from isolation.probe import Kind
from isolation.weakjails import forking
from nsmd.model.values import Interpreter, JailSpec
from realjail import (
    SYSTEM_PATH,
    environments,
    jail_spec,
    launched,
    mount_of,
    needs_bwrap,
    new_launcher,
    open_directory,
    talking_to,
)

pytestmark = [pytest.mark.slow, pytest.mark.jail, needs_bwrap]

BOTH_KINDS = pytest.mark.parametrize("kind", ["cold", "forked"])


async def said(kind: Kind, interpreter: Interpreter, spec: JailSpec, code: str) -> str:
    async with forking(new_launcher()) as launcher:
        one = new_launcher() if kind == "cold" else launcher
        async with launched(one, spec) as jail, talking_to(jail, interpreter) as session:
            outcome = await session.run(code)
    assert launcher.reasons == {}
    return outcome.stdout + outcome.stderr


def needed(*programs: str) -> None:
    for program in programs:
        if shutil.which(program, path=SYSTEM_PATH) is None:
            pytest.skip(f"not here: {program}")


JAVA = """
cat >Sum.java <<'END'
public class Sum {
    static int of(int n) { return n < 2 ? n : of(n - 1) + of(n - 2); }
    public static void main(String[] arguments) throws Exception {
        Thread thread = new Thread(() -> System.out.println(of(32)));
        thread.start();
        thread.join();
    }
}
END
java -Xmx64m Sum.java
"""


@BOTH_KINDS
async def test_java(kind: Kind) -> None:
    needed("java", "javac")
    told = await said(kind, "bash", jail_spec(environments()["bash"]), JAVA)
    lines = told.splitlines()
    assert [line for line in lines if not line.startswith("Picked up ")] == ["2178309"]


VALGRIND = r"""
printf '#include <stdlib.h>\nint main(void) { ((volatile char *)malloc(4))[4] = 1; }' >main.c
cc -g -w main.c -o main
valgrind -q ./main 2>&1 | grep -c 'Invalid write of size 1'
"""


@BOTH_KINDS
async def test_valgrind(kind: Kind) -> None:
    needed("valgrind", "cc")
    assert await said(kind, "bash", jail_spec(environments()["bash"]), VALGRIND) == "1\n"


@pytest.fixture(scope="module")
def numpy_directory() -> Generator[Path]:
    """A project that numpy is installed in, for the Python of sessions."""
    python = shutil.which("python3", path=SYSTEM_PATH)
    with open_directory("/var/tmp") as directory:
        if (
            python is None
            or subprocess.run(
                [python, "-m", "pip", "install", "-q", "--target", directory, "numpy"],
                capture_output=True,
                check=False,
            ).returncode
        ):
            pytest.skip("not here: numpy from pip")
        yield directory


NUMPY = """
import sys
sys.path.insert(0, "/project")
import threading
import numpy
rows = numpy.random.default_rng(1).random((300, 300))
told = []
def multiply():
    told.append(bool(numpy.allclose(rows @ numpy.linalg.inv(rows), numpy.eye(300), atol=1e-6)))
threads = [threading.Thread(target=multiply) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
mapped = numpy.memmap("/workspace/mapped", dtype="float64", mode="w+", shape=(1000,))
mapped[:] = numpy.fft.fft(numpy.ones(1000)).real
print(told, mapped.sum())
"""


@BOTH_KINDS
async def test_numpy(kind: Kind, numpy_directory: Path) -> None:
    spec = jail_spec(environments()["python"], mount_of(numpy_directory))
    told = await said(kind, "python", spec, NUMPY)
    assert told == "[True, True, True, True] 1000.0\n"
