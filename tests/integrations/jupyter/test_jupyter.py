"""Kernels in sessions, with Jupyter's own client, nbclient, and Jupyter's suite for kernels."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jupyter_kernel_test
import nbformat
import pytest
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

import adapter_faults
import host_attacks
import nsm
from e2e_support import supervisor

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

CONFIG = f"""
[environments.kernel]
preset = "python"
interpreter = "{sys.executable}"
preload = ["ipykernel.kernelapp"]
"""

PATIENCE_S = 120


def specification(directory: Path, name: str, **config: Any) -> None:
    """Write a kernel's specification."""
    place = directory / "kernels" / name
    place.mkdir(parents=True)
    provisioner = {"provisioner_name": "nsm", "config": {"env": "kernel"} | config}
    text = {
        "argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": name,
        "language": "python",
        "env": {"GIVEN": "yes"},
        "metadata": {"kernel_provisioner": provisioner},
    }
    (place / "kernel.json").write_text(json.dumps(text))


@pytest.fixture(scope="module", autouse=True)
def running() -> Generator[Supervisor]:
    """A supervisor, kernel specifications, and variables by which both are found."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, pytest.MonkeyPatch.context() as patch:
        directory = Path(path)
        project = directory / "project"
        (project / "data").mkdir(parents=True)
        (project / "data" / "words.txt").write_text("one two three")
        specification(directory, "nsm")
        specification(directory, "shop", project=str(project), project_mode="overlay")
        specification(directory, "bare", env="python")
        specification(directory, "program", forked=False)
        patch.setenv("JUPYTER_PATH", path)
        patch.setenv("JUPYTER_RUNTIME_DIR", f"{path}/runtime")
        patch.setenv("SECRET_TOKEN", "of the host")
        place = directory / "s"
        place.mkdir()
        with supervisor(place, config=CONFIG) as it:
            patch.setenv("NSM_SOCKET", it.socket)
            patch.setenv("PROJECT", str(project))
            yield it


@pytest.fixture
def notebook() -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook()


def run(notebook: nbformat.NotebookNode, *cells: str, kernel_name: str = "nsm") -> list[Any]:
    """Run cells as nbclient does; the outputs of each."""
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    NotebookClient(notebook, kernel_name=kernel_name, timeout=PATIENCE_S).execute()
    return [cell.outputs for cell in notebook.cells]


def sessions() -> list[nsm.SessionRow]:
    with nsm.Client() as client:
        return [row for row in client.sessions() if row.scope == "jupyter"]


class NsmKernelTests(jupyter_kernel_test.KernelTests):
    """Jupyter's suite for kernels, on a kernel in a session."""

    kernel_name = "nsm"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('oops', file=sys.stderr)"
    completion_samples: ClassVar = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples: ClassVar = ["1", "print('hello')", "def f(x):\n  return 2*x\n\n"]
    incomplete_code_samples: ClassVar = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples: ClassVar = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result: ClassVar = [{"code": "1+2+3", "result": "6"}]
    code_display_data: ClassVar = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>t</b>'))",
         "mime": "text/html"},
    ]  # fmt: skip
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


class NsmWelcomeTests(jupyter_kernel_test.IopubWelcomeTests):
    """Jupyter's test of the first message on a channel."""

    kernel_name = "nsm"
    support_iopub_welcome = True


def test_a_notebook_with_a_plot(notebook: nbformat.NotebookNode) -> None:
    outputs = run(
        notebook,
        "import matplotlib.pyplot as plt",
        "numbers = [1, 4, 9]; plt.plot(numbers); plt.show()",
        "import os, pathlib; pathlib.Path('kept.txt').write_text('x'); os.getcwd(), sum(numbers)",
    )
    assert outputs[1][0].output_type == "display_data"
    assert outputs[1][0].data["image/png"]
    assert outputs[2][0].data["text/plain"] == "('/workspace', 14)"
    assert sessions() == []


def test_variables_of_a_kernel_are_those_of_its_specification(
    notebook: nbformat.NotebookNode,
) -> None:
    code = "import os; print(os.environ.get('SECRET_TOKEN'), os.environ['GIVEN'])"
    assert run(notebook, code)[0][0].text == "None yes\n"


def test_a_hostile_model_reaches_nothing(notebook: nbformat.NotebookNode, tmp_path: Path) -> None:
    with host_attacks.target(tmp_path) as target:
        theirs = run(notebook, target.code, kernel_name="python3")
        ours = run(notebook, target.code)
    assert host_attacks.gained(theirs[0][0].text) == host_attacks.ALL
    assert host_attacks.gained(ours[0][0].text) == set()


def test_a_project_and_the_directory_of_a_notebook(notebook: nbformat.NotebookNode) -> None:
    project = os.environ["PROJECT"]
    cells = ["open('words.txt').read()", "open('made', 'w').close()"]
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    resources = {"metadata": {"path": f"{project}/data"}}
    NotebookClient(notebook, kernel_name="shop", timeout=PATIENCE_S, resources=resources).execute()
    assert notebook.cells[0].outputs[0].data["text/plain"] == "'one two three'"
    assert not Path(project, "data", "made").exists()


def test_errors_interrupts_and_time_limits(notebook: nbformat.NotebookNode) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        run(notebook, "1 / 0")
    notebook.cells = [nbformat.v4.new_code_cell("import time; time.sleep(1000)")]
    late = NotebookClient(notebook, kernel_name="nsm", timeout=1, interrupt_on_timeout=True)
    with pytest.raises((CellExecutionError, CellTimeoutError)):
        late.execute()
    assert sessions() == []


def test_a_kernel_that_dies(notebook: nbformat.NotebookNode) -> None:
    with pytest.raises(DeadKernelError):
        run(notebook, "import os; os.kill(os.getpid(), 9)")
    assert sessions() == []


def test_a_kernel_that_dies_before_a_process_that_it_forked(
    notebook: nbformat.NotebookNode,
) -> None:
    code = """
import os, signal
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(writing, b"x")
    while True:
        signal.pause()
os.read(reading, 1)
os.kill(os.getpid(), 9)
"""
    with pytest.raises(DeadKernelError):
        run(notebook, code)
    assert sessions() == []


def said(client: Any, code: str) -> str:
    """Return what code prints."""
    texts: list[str] = []

    def hook(message: dict[str, Any]) -> None:
        if message["header"]["msg_type"] == "stream":
            texts.append(message["content"]["text"])

    client.execute_interactive(code, timeout=PATIENCE_S, output_hook=hook)
    return "".join(texts).strip()


@pytest.fixture
def kernel() -> Generator[tuple[KernelManager, Any]]:
    manager, client = start_new_kernel(startup_timeout=PATIENCE_S, kernel_name="nsm")
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    assert sessions() == []


def test_restart_and_interrupt(kernel: tuple[KernelManager, Any]) -> None:
    manager, client = kernel
    code = "value = 1; open('file', 'w').write('kept'); print(value)"
    assert said(client, code) == "1"
    (before,) = sessions()
    waiting = client.execute("import time\nprint('in', flush=True)\ntime.sleep(1000)")
    while client.get_iopub_msg(timeout=PATIENCE_S)["header"]["msg_type"] != "stream":
        pass
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=PATIENCE_S)
    assert reply["parent_header"]["msg_id"] == waiting
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    manager.restart_kernel()
    client.wait_for_ready(timeout=PATIENCE_S)
    assert said(client, "print('value' in globals(), open('file').read())") == "False kept"
    (after,) = sessions()
    assert after.id == before.id


def test_binary_data_and_output_that_is_no_text(kernel: tuple[KernelManager, Any]) -> None:
    _, client = kernel
    code = "import os; os.write(1, b'\\xff\\xfe'); os.system('printf \"\\\\377\"'); print('end')"
    assert said(client, code).endswith("end")
    size = said(client, "text = 'x' * 5_000_000; print(text)")
    assert len(size) == 5_000_000


def test_a_session_that_is_ended_is_a_dead_kernel_which_starts_again(
    kernel: tuple[KernelManager, Any],
) -> None:
    manager, client = kernel
    with nsm.Client() as own:
        own.kill([row.id for row in sessions()])
    assert not manager.is_alive()
    ports = manager.get_connection_info()
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=PATIENCE_S)
    assert said(client, "print(6 * 7)") == "42"
    assert manager.get_connection_info() == ports


def test_an_environment_without_ipykernel(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="has no ipykernel"):
        start_new_kernel(startup_timeout=PATIENCE_S, kernel_name="bare")
    assert sessions() == []


def in_interpreter(code: str) -> None:
    """Run code in the interpreter that kernels are forked from."""
    (row,) = sessions()
    with nsm.Client() as own:
        assert own.run_in(row.id, code).exit_code == 0


def test_an_interpreter_that_prints_more_than_the_process_of_its_fork(
    kernel: tuple[KernelManager, Any],
) -> None:
    manager, client = kernel
    in_interpreter(
        "import sys; write = sys.stdout.write\n"
        "sys.stdout.write = lambda text: write(f'more{text}more\\n')"
    )
    manager.restart_kernel()
    client.wait_for_ready(timeout=PATIENCE_S)
    assert said(client, "print(6 * 7)") == "42"


def test_an_interpreter_that_does_not_tell_of_its_fork(kernel: tuple[KernelManager, Any]) -> None:
    manager, client = kernel
    in_interpreter("import sys; sys.stdout.write = lambda text: sys.__stdout__.buffer.write(b'no')")
    with pytest.raises(RuntimeError, match=r"environment 'kernel' did not print .* printed 'no'"):
        manager.restart_kernel()
    assert sessions() == []
    manager.restart_kernel()
    client.wait_for_ready(timeout=PATIENCE_S)
    assert said(client, "print(6 * 7)") == "42"


def test_what_nsm_refuses_is_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specification(tmp_path, "none", env="no-such")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no-such"):
        start_new_kernel(kernel_name="none")
    monkeypatch.setenv("JUPYTER_PATH", os.environ["JUPYTER_PATH"])
    manager = KernelManager(kernel_name="none", transport="ipc")
    with pytest.raises(RuntimeError, match="transport 'tcp'"):
        manager.start_kernel()


def test_a_supervisor_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions go on, and so do the channels; the next question starts another one."""
    with adapter_faults.own_supervisor(monkeypatch, CONFIG) as it:
        manager, client = start_new_kernel(startup_timeout=PATIENCE_S, kernel_name="nsm")
        said(client, "value = 7")
        adapter_faults.kill(it)
        assert said(client, "print(value)") == "7"
        assert manager.is_alive()
        manager.restart_kernel()
        client.wait_for_ready(timeout=PATIENCE_S)
        assert said(client, "print(6 * 7)") == "42"
        client.stop_channels()
        manager.shutdown_kernel()
        assert sessions() == []
