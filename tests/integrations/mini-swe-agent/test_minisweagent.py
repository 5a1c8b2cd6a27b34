"""Environment of mini-swe-agent, with the package itself."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

os.environ["MSWEA_SILENT_STARTUP"] = "1"  # read while it is imported

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel

import adapter_faults
import host_attacks
import nsm
from nsm.changes import Changes
from nsm.integrations.minisweagent import SUBMIT, NsmEnvironment

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from e2e_support import Supervisor


@pytest.fixture
def environment(shared: Supervisor) -> Generator[NsmEnvironment]:
    with NsmEnvironment() as it:
        yield it


def run(environment: Any, command: str, **settings: Any) -> dict[str, Any]:
    return environment.execute({"command": command}, **settings)


def test_a_scripted_trajectory(shared: Supervisor, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "sum.py").write_text("print(1 - 2)\n")
    commands = [
        "cat sum.py",
        "sed -i 's/-/+/' sum.py && python3 sum.py",
        "no-such-command",
        f"echo {SUBMIT}; cat sum.py",
    ]
    outputs = [
        {"role": "assistant", "content": each, "extra": {"actions": [{"command": each}]}}
        for each in commands
    ]
    name = "nsm.integrations.minisweagent.NsmEnvironment"
    environment = get_environment({"environment_class": name, "project": str(project)})
    agent = DefaultAgent(
        DeterministicModel(outputs=outputs),
        environment,
        system_template="You run commands.",
        instance_template="{{task}} on {{system}}",
        cost_limit=100,
        output_path=tmp_path / "trajectory.json",
    )
    assert agent.run("Add") == {"exit_status": "Submitted", "submission": "print(1 + 2)\n"}
    seen = [each["content"] for each in agent.messages if each["role"] == "user"]
    assert "<output>\n3\n</output>" in seen[2]
    assert "<returncode>127</returncode>" in seen[3]
    assert (project / "sum.py").read_text() == "print(1 - 2)\n"  # the model changed a copy
    saved = json.loads((tmp_path / "trajectory.json").read_text())
    assert saved["info"]["config"]["environment_type"] == name
    environment.cleanup()


EXAMPLE = """
import os
os.environ["MSWEA_SILENT_STARTUP"] = "1"
from minisweagent.agents.default import DefaultAgent
from minisweagent.models.test_models import DeterministicModel
from nsm.integrations.minisweagent import SUBMIT, NsmEnvironment
actions = [{"command": "echo 2 >made"}], [{"command": f"echo {SUBMIT}"}]
outputs = [{"role": "assistant", "content": "", "extra": {"actions": each}} for each in actions]
agent = DefaultAgent(
    DeterministicModel(outputs=outputs),
    NsmEnvironment(project=".", name="fix"),
    system_template="",
    instance_template="",
    cost_limit=100,
)
agent.run("")
"""


def test_the_documented_example_keeps_the_work(shared: Supervisor, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run([sys.executable, "-P", "-c", EXAMPLE], cwd=project, check=True)
    with nsm.Client() as client:
        changes = Changes(client)
        assert not changes.apply("fix", changes.rows("fix")[0]).refused
        assert (project / "made").read_text() == "2\n"
        client.kill("fix")


def test_variables_of_the_host_are_no_values_for_prompts(
    environment: NsmEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    assert LocalEnvironment().get_template_vars()["A_TOKEN"] == "secret"
    assert "A_TOKEN" not in environment.get_template_vars()
    assert run(environment, "echo $A_TOKEN")["output"] == "\n"


def test_output_in_order_with_errors_and_other_bytes(environment: NsmEnvironment) -> None:
    done = run(environment, "echo a; echo b >&2; printf 'c\\377'; exit 3")
    assert done == {"output": "a\nb\nc\ufffd", "returncode": 3, "exception_info": ""}


def test_settings_of_commands(shared: Supervisor) -> None:
    with NsmEnvironment(cwd="/tmp", env={"A": "b c"}) as environment:
        assert run(environment, "pwd; echo $A")["output"] == "/tmp\nb c\n"
        assert run(environment, "pwd", cwd="/usr")["output"] == "/usr\n"


def test_time_limit_has_the_shape_of_theirs(environment: NsmEnvironment) -> None:
    ours = run(environment, "echo begun; sleep 1000", timeout=1)
    theirs = run(LocalEnvironment(), "echo begun; sleep 1000", timeout=1)
    assert ours.keys() == theirs.keys()
    assert (ours["output"], ours["returncode"]) == ("begun\n", -1)
    assert "stopped after 1 s" in ours["exception_info"]


@pytest.mark.parametrize("command", ["a\0b", "cd /nope; pwd"])
def test_what_a_model_can_mend_is_told_to_it(environment: NsmEnvironment, command: str) -> None:
    place = "/nope" if "cd" in command else ""
    done = run(environment, command, cwd=place)
    assert done["returncode"] == -1
    assert done["exception_info"].startswith("An error occurred while executing the command: ")


def test_a_huge_command_and_huge_output(environment: NsmEnvironment) -> None:
    assert run(environment, f"echo {'x' * 300_000} | wc -c")["output"] == "300001\n"
    assert (
        "bytes of the output are left out"
        in run(environment, "yes | head -c 17000000")["output"][-50:]
    )


def test_the_task_ends_only_by_a_command_that_succeeds(environment: NsmEnvironment) -> None:
    with pytest.raises(Submitted):
        run(environment, f"echo {SUBMIT}")
    assert run(environment, f"echo {SUBMIT}; exit 1")["returncode"] == 1
    assert run(environment, f"echo not {SUBMIT}")["returncode"] == 0


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="image"):
        NsmEnvironment(image="python:3.11")


class TestFaults(adapter_faults.AdapterFaults):
    owner = "mini-swe-agent"

    def open(self, **settings: Any) -> NsmEnvironment:
        return NsmEnvironment(**settings)

    def run(self, box: NsmEnvironment, command: str) -> str:
        return run(box, command)["output"]

    def attack_locally(self, target: host_attacks.Target) -> str:
        return run(LocalEnvironment(), shlex.join(target.argv))["output"]

    def run_for(self, box: NsmEnvironment, command: str, seconds: float) -> None:
        assert "stopped after" in run(box, command, timeout=seconds)["exception_info"]

    def close(self, box: NsmEnvironment) -> None:
        box.cleanup()
