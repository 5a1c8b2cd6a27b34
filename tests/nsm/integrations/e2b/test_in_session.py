"""Programs of contexts, as processes of this machine: they need no sandbox."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import threading
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from nsm.integrations.e2b.contexts import Splitter

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

TOKEN = "0123456789abcdef"
END_S = 120.0
IDLE_S = "600"


class Program:
    """A context that runs."""

    def __init__(self, *command: str) -> None:
        code = (resources.files("nsm.integrations.e2b.in_session") / command[-1]).read_text()
        self.is_bash = command[0] == "bash"
        before = ["bash"] if self.is_bash else []
        self.process = subprocess.Popen(
            [*command[:-1], code, *before, IDLE_S],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.watchdog = threading.Timer(END_S, self.process.kill)
        self.watchdog.start()

    def send(self, code: str, variables: dict[str, str] | None = None) -> None:
        assert self.process.stdin is not None
        if self.is_bash:
            settings = "".join(f"export {k}={v}\n" for k, v in (variables or {}).items()) or "\n"
            parts = [base64.b64encode(each.encode()).decode() for each in (code, settings)]
            line = " ".join([TOKEN, *parts])
        else:
            line = json.dumps({"token": TOKEN, "code": code, "env_vars": variables})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> tuple[str, str, list[dict[str, Any]]]:
        """Output, errors and events of the code that was sent last."""
        splitter, text, events = Splitter(TOKEN), "", list[dict[str, Any]]()
        for part in self._parts(splitter):
            if isinstance(part, str):
                text += part
            elif part.get("type") == "end":
                break
            else:
                events.append(part)
        assert self.process.stderr is not None
        errors = ""
        while not errors.endswith(f"\x1e{TOKEN}.{{}}\n"):
            line = self.process.stderr.readline().decode()
            assert line, errors
            errors += line
        return text, errors.partition("\x1e")[0], events

    def _parts(self, splitter: Splitter) -> Iterator[str | dict[str, Any]]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            yield from splitter.split(line)

    def run(self, code: str, variables: dict[str, str] | None = None) -> tuple[str, str, Any]:
        self.send(code, variables)
        return self.answer()

    def value(self, code: str) -> str | None:
        """Text of the value of code."""
        return next((one["text"] for one in self.run(code)[2] if one.get("is_main_result")), None)

    def error(self, code: str) -> dict[str, Any]:
        """Error of code."""
        return next(one for one in self.run(code)[2] if one["type"] == "error")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.watchdog.cancel()


@pytest.fixture
def python() -> Generator[Program]:
    program = Program(sys.executable, "-c", "python_context.py")
    yield program
    program.close()


@pytest.fixture
def bash() -> Generator[Program]:
    program = Program("bash", "-c", "bash_context.sh")
    yield program
    program.close()


@pytest.fixture
def node() -> Generator[Program]:
    program = Program(shutil.which("node") or "node", "-e", "node_context.js")
    yield program
    program.close()


def test_python_tells_errors_without_its_own_frames(python: Program) -> None:
    error = python.error("def f():\n    1 / 0\nf()")
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    assert error["traceback"].count("File ") == 2
    assert "1 / 0" in error["traceback"]
    assert python.error("1 +")["name"] == "SyntaxError"
    assert python.error("raise SystemExit(3)")["value"] == "3"
    assert python.error("class E(Exception):\n    def __str__(self): 1/0\nraise E")["name"] == "E"
    assert python.value("1") == "1"


def test_python_shows_values_in_their_formats(python: Program) -> None:
    python.run(
        "class Both:\n"
        "    def _repr_html_(self): return '<b>'\n"
        "    def _repr_png_(self): return b'png'\n"
        "    def _repr_svg_(self): 1/0\n"
        "    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'text/plain': 'both', 'text/unknown': 'x'}, {}\n"
    )
    _, _, events = python.run("display('shown'); Both()")
    assert events[0] == {"type": "result", "text": "'shown'", "is_main_result": False}
    assert events[1] == {
        "type": "result",
        "text": "both",
        "html": "<b>",
        "png": base64.b64encode(b"png").decode(),
        "is_main_result": True,
    }


def test_python_large_values_are_whole(python: Program) -> None:
    text = python.value("'é' * 200_000")
    assert text == repr("é" * 200_000)


def test_python_has_variables_for_one_execution(python: Program) -> None:
    _, _, events = python.run("import os; os.environ['A']", {"A": "b"})
    assert events[0]["text"] == "'b'"
    assert python.value("os.environ.get('A')") is None


def test_python_code_has_no_requests_to_read(python: Program) -> None:
    assert python.error("input()")["name"] == "EOFError"
    assert python.value("import sys; sys.argv") == "['']"


def test_python_draws_figures_with_what_stands_for_matplotlib(python: Program) -> None:
    """Figures are those of `matplotlib.pyplot`, whoever made that module."""
    python.run(
        "import sys, types\n"
        "class Figure:\n"
        "    def savefig(self, file, **_): file.write(b'picture')\n"
        "pyplot = types.ModuleType('matplotlib.pyplot')\n"
        "open_figures = [1, 2]\n"
        "pyplot.get_fignums = lambda: list(open_figures)\n"
        "pyplot.figure = lambda number: Figure()\n"
        "pyplot.close = lambda figure: open_figures.pop()\n"
    )
    _, _, events = python.run("sys.modules['matplotlib.pyplot'] = pyplot")
    pictures = [event.get("png") for event in events if event["type"] == "result"]
    assert pictures == [base64.b64encode(b"picture").decode()] * 2
    assert python.value("open_figures") == "[]"


def test_bash_has_variables_for_one_execution(bash: Program) -> None:
    bash.run("export B=old")
    assert bash.run("echo $A $B", {"A": "1", "B": "2"})[0] == "1 2\n"
    assert bash.run("echo [$A] $B")[0] == "[] old\n"


@pytest.mark.node
def test_node_keeps_state(node: Program) -> None:
    node.run("const a = 1; let b = { x: [1, 2] }; function f() { return b; }")
    assert node.value("f()") == "{ x: [ 1, 2 ] }"
    assert node.value("const a = 2; await new Promise((r) => setTimeout(r, 1)); a") == "2"
    assert node.value("undefined") is None
    assert node.run("console.log('é'); console.error('e')")[:2] == ("é\n", "e\n")
    assert node.value("require('os').platform()") == "'linux'"


@pytest.mark.node
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("null.x", "TypeError"),
        ("x y", "SyntaxError"),
        ("throw 5", "Error"),
        ("q", "ReferenceError"),
    ],
)
def test_node_tells_errors(node: Program, code: str, name: str) -> None:
    error = node.error(code)
    assert error["name"] == name
    assert "Session.post" not in error["traceback"]
    assert node.value("1n") == "1n"


@pytest.mark.node
def test_node_has_variables_for_one_execution(node: Program) -> None:
    assert node.run("process.env.A", {"A": "b"})[2][0]["text"] == "'b'"
    assert node.value("process.env.A") is None
