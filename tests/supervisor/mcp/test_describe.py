"""Description of the tool for a client."""

from __future__ import annotations

import dataclasses
import json

import pytest

from fake_runner import ENVIRONMENTS, a_project
from nsmd.mcp import run_tool
from nsmd.model.values import Environment, NetworkRule

PACKAGES = ("attr", "matplotlib", "numpy", "pandas", "requests", "scipy", "zzz")
# The same as `nsmd.environments.host_presets` finds, with packages.
ENVS = (dataclasses.replace(ENVIRONMENTS[0], packages=PACKAGES), *ENVIRONMENTS[1:])

MAX_TOKENS = 450
CHARS_PER_TOKEN = 4


def tokens(environments: tuple[Environment, ...], *, fork: bool = True) -> float:
    """All of what a client puts into its model's context, generously: as JSON, with every key."""
    tool = {
        "name": run_tool.TOOL_NAME,
        "description": run_tool.describe(environments, a_project(), "", fork=fork),
        "inputSchema": run_tool.schema(environments, fork=fork),
        "annotations": run_tool.hints(environments),
    }
    return (len(json.dumps(tool)) + len(run_tool.INSTRUCTIONS)) / CHARS_PER_TOKEN


def test_the_budget_with_three_environments() -> None:
    assert tokens(ENVS) < MAX_TOKENS


def test_each_more_costs_a_line() -> None:
    more = Environment(name="science", interpreter="python", description="Python with numpy")
    added = tokens((*ENVS, more)) - tokens(ENVS)
    assert added < 15


def test_everything_a_model_needs_is_there() -> None:
    text = run_tool.describe(ENVS, a_project("/home/user/src/x"), "")
    assert (
        "- python: Python 3.11.2; 30 s; numpy, pandas, matplotlib, scipy, requests, attr\n" in text
    )
    assert "- bash: GNU bash 5.2.15; 30 s\n- node: Node.js 20.11.1; 30 s\n" in text
    assert "`background` runs `code` as a job" in text
    assert "Plots come back as images" in text
    assert "/home/user/src/x is at /project, read-only" in text
    assert "Network is off" in text
    assert "/workspace" in text
    assert '"new"' in text
    assert "print('hi'), not python -c" in text


def test_unusable_environments_are_left_out_while_there_are_others() -> None:
    broken = dataclasses.replace(ENVS[2], problem="no `node` on PATH")
    text = run_tool.describe((*ENVS[:2], broken), None, "HOME is never mounted")
    assert "node" not in text
    assert "No project is mounted: HOME is never mounted." in text


def test_where_nothing_is_usable_the_reasons_are_told() -> None:
    broken = dataclasses.replace(ENVS[2], problem="no `node` on PATH")
    text = run_tool.describe((broken,), None, "")
    assert "no environment is usable" in text
    assert "- node: no `node` on PATH" in text
    assert "none was found" in text


def test_a_description_takes_one_line_whatever_is_in_it() -> None:
    odd = dataclasses.replace(ENVIRONMENTS[0], description="a\nb\x1b[31m" + "c" * 500)
    text = run_tool.describe((odd,), None, "\n")
    (line,) = [line for line in text.splitlines() if line.startswith("- python")]
    assert line.startswith("- python: a b [31mccc")
    assert len(line) < 120


def test_schema_lists_what_is_checked_by_hand() -> None:
    schema = run_tool.schema(ENVS)
    first, then = ["code", "env", "session", "timeout_seconds"], ["background", "job", "stop"]
    assert list(schema["properties"]) == [*first, *then, "reset"]
    assert "required" not in schema  # a call about a job has no code
    assert schema["additionalProperties"] is False
    assert schema["properties"]["env"]["enum"] == ["python", "bash", "node"]


def test_forks_are_described_where_there_are_some() -> None:
    assert "fork_of" not in run_tool.schema(ENVS)["properties"]
    assert "fork_of" not in run_tool.describe(ENVS, None, "")
    assert run_tool.schema(ENVS, fork=True)["properties"]["fork_of"] == {"type": "string"}
    assert "`fork_of` copies a session" in run_tool.describe(ENVS, None, "", fork=True)


def test_where_nothing_is_usable_any_environment_may_be_asked_for() -> None:
    broken = dataclasses.replace(ENVS[2], problem="no `node` on PATH")
    assert "enum" not in run_tool.schema((broken,))["properties"]["env"]
    assert run_tool.schema((*ENVS[:2], broken))["properties"]["env"]["enum"] == ["python", "bash"]


def test_what_is_imported_already_is_named_first() -> None:
    science = dataclasses.replace(ENVS[0], preload=("polars", "scipy.stats"), timeout_s=2.5)
    text = run_tool.describe((science,), None, "")
    assert "; 2.5 s; scipy, numpy, pandas, matplotlib, requests, attr\n" in text


def test_what_somebody_asked_for_is_named_before_what_is_well_known() -> None:
    lab = dataclasses.replace(ENVS[0], main_packages=("zzz", "requests"))
    web = dataclasses.replace(ENVS[2], main_packages=("zod", "esbuild"), packages=("zod", "yaml"))
    text = run_tool.describe((lab, web), None, "")
    assert "; 30 s; zzz, requests, numpy, pandas, matplotlib, scipy\n" in text
    assert "; 30 s; zod, esbuild\n" in text


def with_networks(*networks: NetworkRule) -> tuple[Environment, ...]:
    return tuple(
        dataclasses.replace(environment, network=network)
        for environment, network in zip(ENVS, networks, strict=True)
    )


OFF = NetworkRule()
SOME = NetworkRule(mode="allow", allow=("example.org", "*.example.com:443"))
NONE = NetworkRule(mode="allow")
FULL = NetworkRule(mode="full")


@pytest.mark.parametrize(
    ("networks", "destructive", "open_world"),
    [
        ((OFF, OFF, OFF), False, False),
        ((OFF, SOME, OFF), False, True),
        ((NONE, OFF, OFF), False, False),
        ((OFF, OFF, FULL), True, True),
    ],
)
def test_hints_are_true(
    networks: tuple[NetworkRule, ...], destructive: bool, open_world: bool
) -> None:
    hints = run_tool.hints(with_networks(*networks))
    assert hints["destructiveHint"] is destructive
    assert hints["openWorldHint"] is open_world
    assert hints["readOnlyHint"] is False


def test_hints_are_of_what_is_usable() -> None:
    broken = dataclasses.replace(with_networks(FULL, OFF, OFF)[0], problem="gone")
    assert run_tool.hints((broken, *ENVS[1:]))["openWorldHint"] is False


def test_each_environment_says_what_it_reaches() -> None:
    text = run_tool.describe(with_networks(SOME, OFF, FULL), a_project(), "")
    assert "requests, attr; network: example.org, *.example.com:443\n" in text
    assert "- bash: GNU bash 5.2.15; 30 s\n" in text
    assert "- node: Node.js 20.11.1; 30 s; network: everything\n" in text
    assert "Otherwise network is off." in text


def test_where_all_reach_something_nothing_is_off() -> None:
    assert "is off" not in run_tool.describe(with_networks(SOME, SOME, FULL), a_project(), "")


def test_an_empty_list_is_no_network() -> None:
    text = run_tool.describe(with_networks(NONE, OFF, OFF), a_project(), "")
    assert "network:" not in text
    assert " Network is off." in text


def test_long_lists_of_hosts_are_cut() -> None:
    hosts = tuple(f"host{number}.example.org\n" for number in range(9))
    rule = NetworkRule(mode="allow", allow=hosts)
    text = run_tool.describe(with_networks(rule, OFF, OFF), a_project(), "")
    (line,) = [line for line in text.splitlines() if line.startswith("- python")]
    assert line.endswith("host3.example.org, host4.example.org, 4 more")


def test_a_copied_project_is_said_to_be_one() -> None:
    copied = dataclasses.replace(a_project("/home/user/src/x"), mode="overlay")
    text = run_tool.describe(ENVS, copied, "")
    assert "/home/user/src/x is at /project; changes stay in a copy of the session's own." in text
    assert "read-only" not in text


def test_the_budget_holds_with_networks() -> None:
    assert tokens(with_networks(SOME, SOME, SOME)) < MAX_TOKENS
