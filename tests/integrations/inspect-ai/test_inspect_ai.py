"""Sandbox of inspect_ai: its own checks, an eval with a scripted model, and faults."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Target, accuracy, includes, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import bash, python
from inspect_ai.util import OutputLimitExceededError, sandbox
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

import adapter_faults
import framework_pages
import host_attacks
import nsm
from nsm.integrations.inspect_ai import NsmConfig, NsmSandboxEnvironment, UserError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from e2e_support import Supervisor

CHECKS = sorted(name for name in vars(self_check) if name.startswith("test_"))

NO_OTHER_USER = {"test_exec_as_user": "a session has one user"}
"""Checks that no session can pass, and why."""

if UserError is RuntimeError:  # an older release, whose check knows no error for that
    NO_OTHER_USER["test_exec_as_nonexistent_user"] = "a session has one user"


def in_sandbox(function: Callable[[Any], Awaitable[None]], **config: Any) -> None:
    """Do something in the sandbox of a sample."""

    async def main() -> None:
        made = await NsmSandboxEnvironment.sample_init("test", NsmConfig(**config), {})
        try:
            await function(made["default"])
        finally:
            await NsmSandboxEnvironment.sample_cleanup("test", None, made, False)

    asyncio.run(main())


@pytest.mark.parametrize("name", CHECKS)
def test_its_own_check(shared: Supervisor, name: str) -> None:
    if name in NO_OTHER_USER:
        with pytest.raises(UserError):
            in_sandbox(getattr(self_check, name))
    else:
        in_sandbox(getattr(self_check, name))


def output(**call: Any) -> ModelOutput:
    """An answer that calls a tool, or says something."""
    if "tool" in call:
        made = ModelOutput.for_tool_call("mockllm/model", call["tool"], call["arguments"])
    else:
        made = ModelOutput.from_content("mockllm/model", call["content"])
    made.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it downloads
    return made


def test_an_eval_with_tools(shared: Supervisor, tmp_path: Path) -> None:
    answers = [
        output(tool="bash", arguments={"command": "wc -w < words.txt > count; cat count"}),
        output(tool="python", arguments={"code": "print(int(open('count').read()) * 2)"}),
        output(content="It is 6."),
    ]
    sample = Sample(input="Count.", target="6", files={"words.txt": "one two three"})
    task = Task(
        dataset=[sample],
        solver=[use_tools(bash(timeout=60), python(timeout=60)), generate()],
        scorer=includes(),
        sandbox="nsm",
    )
    model = get_model("mockllm/model", custom_outputs=answers)
    (log,) = asyncio.run(eval_async(task, model=model, log_dir=str(tmp_path)))
    assert log.status == "success", log.error
    said = [message.text.strip() for message in log.samples[0].messages if message.role == "tool"]
    assert said == ["3", "6"]
    with nsm.Client() as client:
        assert client.sessions() == []


def passes() -> Any:
    async def score(state: TaskState, target: Target) -> Score:
        answer = state.output.completion
        program = f"import os; {answer}; assert value == {target.text}; print(os.getcwd())"
        done = await sandbox().exec(["python3", "-c", program], timeout=60)
        return Score(value=done.success, answer=answer, explanation=done.stdout)

    return score


def test_fresh_programs_of_all_samples(shared: Supervisor, tmp_path: Path) -> None:
    """Programs of inspect_ai's own tool for Python, and of a scorer."""
    answers = [
        output(tool="python", arguments={"code": "value = 1; print(6 * 7)"}),
        output(content="value = 42"),
        output(tool="python", arguments={"code": "print(value)"}),
        output(content="print('not this time')"),
    ]
    task = Task(
        dataset=[Sample(input="What?", target="42"), Sample(input="What?", target="42")],
        solver=[use_tools(python(timeout=60)), generate()],
        scorer=scorer(metrics=[accuracy()])(passes)(),
        sandbox=("nsm", NsmConfig(fresh=True)),
    )
    model = get_model("mockllm/model", custom_outputs=answers)
    (log,) = asyncio.run(eval_async(task, model=model, log_dir=str(tmp_path), max_samples=1))
    assert log.status == "success", log.error
    scores = [sample.scores["passes"] for sample in log.samples]
    assert [score.value for score in scores] == [True, False]
    assert scores[0].explanation.startswith("/workspace/.fresh/")
    said = [message.text for each in log.samples for message in each.messages]
    assert "42" in said[2]
    assert any("name 'value' is not defined" in text for text in said)
    with nsm.Client() as client:
        (row,) = client.sessions()
        client.kill(row.id)


def test_limits_of_fresh_programs(shared: Supervisor) -> None:
    async def check(box: Any) -> None:
        with pytest.raises(TimeoutError, match="stopped after 1 s"):
            await box.exec(["python3", "-c", "while True: pass"], timeout=1)
        with pytest.raises(OutputLimitExceededError, match="bytes"):
            await box.exec(["python3", "-c", "print('x' * 10**6)"])
        assert (await box.exec(["python3", "-c", "raise SystemExit(3)"])).returncode == 3
        assert box.sandbox.session is None

    in_sandbox(check, fresh=True)
    with nsm.Client() as client:
        client.kill([row.id for row in client.sessions()])


def test_output_that_is_not_utf_8(shared: Supervisor) -> None:
    async def binary(sandbox: Any) -> None:
        result = await sandbox.exec(["printf", r"\377ok"])
        assert result.stdout == "\N{REPLACEMENT CHARACTER}ok"
        await sandbox.write_file("raw", b"\xff")
        with pytest.raises(UnicodeDecodeError):
            await sandbox.read_file("raw")

    in_sandbox(binary)


def test_too_much_output(shared: Supervisor) -> None:
    async def print_much(sandbox: Any) -> None:
        with pytest.raises(OutputLimitExceededError):
            await sandbox.exec(["head", "-c", "11000000", "/dev/zero"])
        assert (await sandbox.exec(["echo", "still"])).stdout == "still\n"

    in_sandbox(print_much)


def test_a_missing_program_is_a_result(shared: Supervisor) -> None:
    async def missing(sandbox: Any) -> None:
        result = await sandbox.exec(["no-such-program"])
        assert (result.success, result.returncode) == (False, 127)

    in_sandbox(missing)


def test_a_configuration_of_another_kind(shared: Supervisor) -> None:
    with pytest.raises(ValueError, match="takes an NsmConfig"):
        asyncio.run(NsmSandboxEnvironment.sample_init("test", "compose.yaml", {}))


def test_the_example_of_the_page(shared: Supervisor, tmp_path: Path) -> None:
    """In a process of its own, where nobody has imported the adapter: the entry point is found."""
    for example in framework_pages.examples("inspect_ai"):
        done = subprocess.run(
            [sys.executable, "-c", example],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.endswith(framework_pages.prints(example)), done.stdout + done.stderr


class TestFaults(adapter_faults.AsyncFaults):
    owner = "inspect_ai"

    def open(self, **settings: Any) -> Any:
        config = NsmConfig(**settings)
        return asyncio.run(NsmSandboxEnvironment.sample_init("test", config, {}))["default"]

    async def arun(self, box: Any, command: str) -> str:
        return str((await box.exec(["bash", "-c", command], concurrency=False)).stdout)

    def attack_locally(self, target: host_attacks.Target) -> str:
        command = [sys.executable, "-c", target.code]
        done = asyncio.run(LocalSandboxEnvironment().exec(command, concurrency=False))
        return str(done.stdout)

    def run_for(self, box: Any, command: str, seconds: float) -> None:
        limits = {"timeout": seconds, "timeout_retry": False, "concurrency": False}
        with pytest.raises(TimeoutError):
            asyncio.run(box.exec(["bash", "-c", command], **limits))

    def close(self, box: Any) -> None:
        asyncio.run(box.sandbox.aclose())
