"""Executor of smolagents, with the package itself; after its own tests/test_remote_executors.py."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import base64
import io
import signal
import subprocess
import sys
import threading
import time
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import PIL.Image
import pytest
import smolagents
from smolagents import CodeAgent, Tool, tool
from smolagents.default_tools import FinalAnswerTool, WikipediaSearchTool
from smolagents.local_python_executor import LocalPythonExecutor
from smolagents.models import ChatMessage, MessageRole, Model
from smolagents.utils import AgentError

import adapter_faults
import framework_pages
import host_attacks
import nsm
from nsm.integrations.smolagents import NsmExecutor

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor


@pytest.fixture
def executor(shared: Supervisor) -> Generator[NsmExecutor]:
    with NsmExecutor() as it:
        yield it


class ScriptedModel(Model):
    """A model that says what it was told to."""

    def __init__(self, *answers: str) -> None:
        super().__init__(model_id="scripted")
        self.answers = list(answers)
        self.seen: list[Any] = []

    def generate(self, messages: Any, **_: Any) -> ChatMessage:
        self.seen.append(messages)
        code = self.answers.pop(0)
        return ChatMessage(
            role=MessageRole.ASSISTANT, content=f"Thought: next.\n<code>\n{code}\n</code>"
        )


@tool
def shout(text: str) -> str:
    """Say it louder.

    Args:
        text: what is said.
    """
    return text.upper() + "!"


class Counter(Tool):
    name = "count"
    description = "Count calls."
    inputs: dict[str, Any] = {}  # noqa: RUF012  # as smolagents wants it
    output_type = "integer"

    def __init__(self) -> None:
        self.calls = 0
        super().__init__()

    def forward(self) -> int:
        self.calls += 1
        return self.calls


# Its own tests of executors, ported


def test_an_error_has_the_traceback_and_what_was_printed(executor: NsmExecutor) -> None:
    with pytest.raises(AgentError) as caught:
        executor('print("before")\nraise ValueError("no such thing")')
    for part in ("before", "ValueError: no such thing", "line 2"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        "This is the final answer",
        42,
        [1, "two", None],
        {"a": {"b": (1, 2)}},
        {1: "a", 2: "b"},
        {"quote": 'it\'s "quoted"\nin two lines'},
        b"\x00\xff",
        "\udcff",
        "x" * 200_000,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_the_final_answer(executor: NsmExecutor, answer: object) -> None:
    executor.send_tools({"final_answer": FinalAnswerTool()})
    output = executor(f"final_answer({answer!r})")
    assert output.is_final_answer
    assert output.output == answer


def test_the_final_answer_in_an_expression_and_in_try(executor: NsmExecutor) -> None:
    executor.send_tools({"final_answer": FinalAnswerTool()})
    code = """
    def answer():
        try:
            print("so it is")
            final_answer([1, 2])
        except Exception:
            print("not here")
    answer()
    """
    output = executor(dedent(code))
    assert (output.output, output.logs) == ([1, 2], "so it is\n")


def test_an_object_as_answer_needs_pickle(executor: NsmExecutor) -> None:
    executor.send_tools({"final_answer": FinalAnswerTool()})
    with pytest.raises(AgentError, match="Cannot safely serialize"):
        executor("import datetime\nfinal_answer(datetime.timezone.utc)")


def test_pickle_is_loaded_only_where_it_was_allowed(shared: Supervisor) -> None:
    code = "import datetime\nfinal_answer(datetime.timezone.utc)"
    with NsmExecutor(allow_pickle=True) as trusting:
        trusting.send_tools({"final_answer": FinalAnswerTool()})
        assert str(trusting(code).output) == "UTC"


def test_a_forged_pickle_is_refused(executor: NsmExecutor) -> None:
    forged = """
    class FinalAnswerException(BaseException): pass
    raise FinalAnswerException("pickle:Y3Bvc2l4CnN5c3RlbQooUydleGl0IDEnCnRSLg==")
    """
    with pytest.raises(Exception, match="Pickle data rejected"):
        executor(dedent(forged))


def test_tools_are_sent_as_functions(executor: NsmExecutor) -> None:
    executor.send_tools({"shout": shout, "count": Counter()})
    assert executor('count(); count(), shout("hello")').output == "(2, 'HELLO!')"


def test_variables_are_sent(executor: NsmExecutor) -> None:
    sent = {"n": 3, "names": ["a", "b"], "raw": b"\xff", "quoted": 'it\'s "so"\n'}
    executor.send_variables(sent)
    assert executor("(n, names, raw, quoted)").output == repr((*sent.values(),))


def test_fresh_steps_have_what_was_sent_and_nothing_else(shared: Supervisor) -> None:
    with NsmExecutor(fresh=True) as executor:
        executor.send_tools({"shout": shout, "final_answer": FinalAnswerTool()})
        executor.send_variables({"n": 3, "quoted": 'it\'s "so"\n'})
        assert executor("kept = n; shout('a' * n) + quoted").output == repr('AAA!it\'s "so"\n')
        with pytest.raises(AgentError, match="'kept' is not defined"):
            executor("kept")
        output = executor("final_answer('x' * 200_000)")
        assert (output.output, output.is_final_answer) == ("x" * 200_000, True)


def test_an_image_is_sent_and_comes_back(shared: Supervisor) -> None:
    with NsmExecutor(env="python") as executor:
        shown = """
        class Dot:
            def _repr_png_(self):
                import base64
                return base64.b64decode(DATA)
        Dot()
        """
        file = io.BytesIO()
        PIL.Image.new("RGB", (3, 2), "red").save(file, "PNG")
        executor.send_variables({"DATA": base64.b64encode(file.getvalue()).decode()})
        output = executor(dedent(shown)).output
        assert isinstance(output, PIL.Image.Image)
        assert output.size == (3, 2)


# Agents


def test_an_agent_works_in_two_steps(shared: Supervisor) -> None:
    model = ScriptedModel("n = sum(range(11))\nprint(n)", "final_answer(shout(f'it is {n}'))")
    with (
        NsmExecutor() as executor,
        CodeAgent(tools=[shout], model=model, executor=executor) as agent,
    ):
        assert agent.run("Add up.") == "IT IS 55!"
        assert "55" in str(model.seen[1])
        model.answers += ["final_answer(n)"]
        assert agent.run("Once more.", reset=False) == 55


def test_an_agent_goes_on_after_an_error(shared: Supervisor) -> None:
    model = ScriptedModel("1 / 0", "final_answer('done')")
    with NsmExecutor() as executor, CodeAgent(tools=[], model=model, executor=executor) as agent:
        assert agent.run("Divide.") == "done"
    assert "ZeroDivisionError" in str(model.seen[1])


def test_the_example_of_the_page(
    shared: Supervisor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "final_answer(sum(all(n % k for k in range(2, n)) for n in range(2, 1000)))"
    monkeypatch.setattr(smolagents, "InferenceClientModel", lambda: ScriptedModel(code))
    for example in framework_pages.examples("smolagents"):
        exec(example, {})
        assert capsys.readouterr().out.endswith(framework_pages.prints(example))


# Hostile code


def test_the_local_executor_cannot_run_what_the_jail_can(executor: NsmExecutor) -> None:
    """The framework's own local executor allows listed modules only, since it has no jail."""
    code = "import os\nlen(os.listdir('/proc')) > 0"
    with pytest.raises(Exception, match="Import of os is not allowed"):
        LocalPythonExecutor([])(code)
    assert executor(code).output == "True"


# Bad input and faults


def test_a_package_that_is_missing(shared: Supervisor) -> None:
    with pytest.raises(AgentError, match=r"no package no-such-package.*nsm env add"):
        NsmExecutor(["json", "no-such-package"])
    with nsm.Client() as client:
        assert client.sessions() == []


def test_a_tool_whose_package_is_missing(executor: NsmExecutor) -> None:
    with pytest.raises(AgentError, match="nsm env add"):
        executor.send_tools({"wikipedia": WikipediaSearchTool.__new__(NeedsPackage)})


class NeedsPackage(WikipediaSearchTool):
    def to_dict(self) -> dict[str, Any]:
        return {"requirements": {"wikipedia-api", "smolagents"}}


def test_a_time_limit(shared: Supervisor) -> None:
    with NsmExecutor(timeout_s=0.5) as executor:
        executor("n = 1")
        with pytest.raises(AgentError, match=r"time limit of 0\.5 s was over"):
            executor("while True: pass")
        assert executor("n").output == "1"


def test_tools_and_variables_come_back_with_the_interpreter(executor: NsmExecutor) -> None:
    executor.send_tools({"shout": shout})
    executor.send_variables({"n": 3})
    with pytest.raises(AgentError, match="Variables are lost"):
        executor("import os; os._exit(3)")
    assert executor("shout('a' * n)").output == "'AAA!'"


def test_a_forgotten_executor_ends_with_the_program(shared: Supervisor) -> None:
    code = "from nsm.integrations.smolagents import NsmExecutor; NsmExecutor()('x = 1')"
    subprocess.run([sys.executable, "-c", code], check=True)
    with nsm.Client() as client:
        assert not client.sessions()


def test_an_executor_with_a_name_stays_and_says_whose_it_is(shared: Supervisor) -> None:
    code = "from nsm.integrations.smolagents import NsmExecutor; NsmExecutor(name='n')('x = 1')"
    subprocess.run([sys.executable, "-c", code], check=True)
    with nsm.Client() as client:
        (row,) = client.sessions()
        assert row.labels["owner"] == "smolagents"
        assert client.kill_labelled({"owner": "smolagents"}).killed


def test_an_interrupt_ends_the_step(executor: NsmExecutor) -> None:
    """Ctrl-C while code runs: the framework stops the agent, and the session can be used."""

    def interrupt() -> None:
        with nsm.Client() as client:
            while not any(row.state != "idle" for row in client.sessions()):
                time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        executor("while True: pass")
    thread.join()
    assert executor("1").output == "1"


class TestFaults(adapter_faults.AdapterFaults):
    """The shared faults, with Bash as a program of Python code, and 20 threads at once."""

    owner = "smolagents"
    at_once = 20
    slow = "echo $$ >pid; exec sleep 1000"  # a step is interrupted; its background goes on

    def open(self, **settings: Any) -> Any:
        return NsmExecutor(**settings)

    def run(self, box: Any, command: str) -> str:
        code = "import subprocess; subprocess.run(['bash', '-c', {!r}], check=True)"
        return str(box(code.format(command)).logs)

    def attack(self, box: Any, target: host_attacks.Target) -> str:
        return str(box(target.code).logs)

    def run_beside(self, box: Any, command: str) -> str:
        """Run a program of the session, whose interpreter does one thing at a time."""
        return str(box.sandbox.execute(["bash", "-c", command]).output.decode())

    def run_for(self, box: Any, command: str, seconds: float) -> None:
        box._timeout_s = seconds
        with pytest.raises(AgentError, match="time limit"):
            self.run(box, command)
        box._timeout_s = None

    def close(self, box: Any) -> None:
        box.cleanup()
