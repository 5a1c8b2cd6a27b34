"""Descriptions of the tools for a client: what a model reads before its first call."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest

from fake_runner import ENVIRONMENTS, a_project
from nsm.wire.errors import BadRequestError
from nsmd.mcp import bridge_tools, run_tool
from nsmd.model.values import Environment, NetworkRule

PACKAGES = ("attr", "matplotlib", "numpy", "pandas", "requests", "scipy", "zzz")
# The same as `nsmd.environments.host_presets` finds, with packages.
ENVS = (dataclasses.replace(ENVIRONMENTS[0], packages=PACKAGES), *ENVIRONMENTS[1:])
BROKEN = dataclasses.replace(ENVS[2], problem="no `node` on PATH")

MAX_TOKENS, MAX_BRIDGE_TOKENS = 450, 250
CHARS_PER_TOKEN = 4

OFF = NetworkRule()
SOME = NetworkRule(mode="allow", allow=("example.org", "*.example.com:443"))
NONE = NetworkRule(mode="allow")
FULL = NetworkRule(mode="full")


def with_networks(*networks: NetworkRule) -> tuple[Environment, ...]:
    return tuple(
        dataclasses.replace(environment, network=network)
        for environment, network in zip(ENVS, networks, strict=True)
    )


def tokens(environments: tuple[Environment, ...], *, fork: bool = True) -> float:
    """All of what a client puts into its model's context, generously: as JSON, with every key."""
    tool = {
        "name": run_tool.TOOL_NAME,
        "description": run_tool.describe(environments, a_project(), "", fork=fork),
        "inputSchema": run_tool.schema(environments, fork=fork),
        "annotations": run_tool.hints(environments),
    }
    return (len(json.dumps(tool)) + len(run_tool.INSTRUCTIONS)) / CHARS_PER_TOKEN


def test_a_model_reads_few_tokens() -> None:
    assert tokens(ENVS) < MAX_TOKENS
    assert tokens(with_networks(SOME, SOME, SOME)) < MAX_TOKENS
    more = Environment(name="science", interpreter="python", description="Python with numpy")
    assert tokens((*ENVS, more)) - tokens(ENVS) < 15


def test_a_model_reads_few_tokens_of_the_bridge() -> None:
    tools = [
        {
            "name": name,
            "description": bridge_tools.DESCRIPTIONS[name],
            "inputSchema": bridge_tools.schema(name),
            "annotations": bridge_tools.hints(name),
        }
        for name in bridge_tools.NAMES
    ]
    more = len(run_tool.instructions(True)) - len(run_tool.instructions(False))
    assert (len(json.dumps(tools)) + more) / CHARS_PER_TOKEN < MAX_BRIDGE_TOKENS


LAB = dataclasses.replace(ENVS[0], main_packages=("zzz", "requests"))
SCIENCE = dataclasses.replace(ENVS[0], preload=("polars", "scipy.stats"), timeout_s=2.5)
HOSTS = NetworkRule(mode="allow", allow=tuple(f"host{n}.example.org\n" for n in range(9)))
COPIED = dataclasses.replace(a_project("/home/user/src/x"), mode="overlay")
NOT_FOUND = {"mount": None, "why": "HOME is never mounted"}

DESCRIBED: dict[str, tuple[tuple[Environment, ...], dict[str, Any], list[str], list[str]]] = {
    "all": (
        ENVS,
        {"mount": a_project("/home/user/src/x")},
        [
            "- python: Python 3.11.2; 30 s; numpy, pandas, matplotlib, scipy, requests, attr\n",
            "- bash: GNU bash 5.2.15; 30 s\n- node: Node.js 20.11.1; 30 s\n",
            "`background` runs `code` as a job",
            "Plots come back as images",
            "/home/user/src/x is at /project, read-only",
            "Network is off",
            '"new"',
        ],
        ["fork_of"],
    ),
    "an unusable environment is left out": (
        (*ENVS[:2], BROKEN),
        NOT_FOUND,
        ["No project is mounted: HOME is never mounted."],
        ["node"],
    ),
    "where none is usable the reasons are told": (
        (BROKEN,),
        {},
        ["no environment is usable", "- node: no `node` on PATH", "none was found"],
        [],
    ),
    "forks": (ENVS, {"fork": True}, ["`fork_of` copies a session"], []),
    "imported packages come first": (
        (SCIENCE,),
        {},
        ["; 2.5 s; scipy, numpy, pandas, matplotlib, requests, attr\n"],
        [],
    ),
    "packages that somebody asked for come before well-known ones": (
        (LAB, dataclasses.replace(ENVS[2], main_packages=("zod", "esbuild"), packages=("zod",))),
        {},
        ["; 30 s; zzz, requests, numpy, pandas, matplotlib, scipy\n", "; 30 s; zod, esbuild\n"],
        [],
    ),
    "hosts that each environment reaches": (
        with_networks(SOME, OFF, FULL),
        {},
        [
            "requests, attr; network: example.org, *.example.com:443\n",
            "- bash: GNU bash 5.2.15; 30 s\n",
            "- node: Node.js 20.11.1; 30 s; network: everything\n",
            "Otherwise network is off.",
        ],
        [],
    ),
    "where all reach something nothing is off": (
        with_networks(SOME, SOME, FULL),
        {},
        [],
        ["is off"],
    ),
    "an empty list of hosts is not a network": (
        with_networks(NONE, OFF, OFF),
        {},
        [" Network is off."],
        ["network:"],
    ),
    "a long list of hosts is cut": (
        with_networks(HOSTS, OFF, OFF),
        {},
        ["host3.example.org, host4.example.org, 4 more\n"],
        ["host5"],
    ),
    "a copied project": (
        ENVS,
        {"mount": COPIED},
        ["/home/user/src/x is at /project; changes stay in a copy of the session's own."],
        ["read-only"],
    ),
}


@pytest.mark.parametrize(
    ("environments", "given", "told", "left_out"), DESCRIBED.values(), ids=DESCRIBED
)
def test_the_description_tells(
    environments: tuple[Environment, ...],
    given: dict[str, Any],
    told: list[str],
    left_out: list[str],
) -> None:
    mount, why = given.get("mount"), given.get("why", "")
    text = run_tool.describe(environments, mount, why, fork=given.get("fork", False))
    assert [part for part in told if part not in text] == []
    assert [part for part in left_out if part in text] == []


def test_a_description_takes_one_line_whatever_is_in_it() -> None:
    odd = dataclasses.replace(ENVIRONMENTS[0], description="a\nb\x1b[31m" + "c" * 500)
    text = run_tool.describe((odd,), None, "\n")
    (line,) = [line for line in text.splitlines() if line.startswith("- python")]
    assert line.startswith("- python: a b [31mccc")
    assert len(line) < 120


def test_the_schema_lists_usable_environments_and_forks_where_there_are_some() -> None:
    schema = run_tool.schema(ENVS)
    assert "required" not in schema  # a call about a job has no code
    assert schema["additionalProperties"] is False
    assert schema["properties"]["env"]["enum"] == ["python", "bash", "node"]
    assert "fork_of" not in schema["properties"]
    assert run_tool.schema(ENVS, fork=True)["properties"]["fork_of"] == {"type": "string"}
    assert "enum" not in run_tool.schema((BROKEN,))["properties"]["env"]
    assert run_tool.schema((*ENVS[:2], BROKEN))["properties"]["env"]["enum"] == ["python", "bash"]


@pytest.mark.parametrize(
    ("environments", "destructive", "open_world"),
    [
        (ENVS, False, False),
        (with_networks(OFF, SOME, OFF), False, True),
        (with_networks(NONE, OFF, OFF), False, False),
        (with_networks(OFF, OFF, FULL), True, True),
        (
            (dataclasses.replace(with_networks(FULL, OFF, OFF)[0], problem="x"), ENVS[1]),
            False,
            False,
        ),
    ],
    ids=["off", "hosts", "no hosts", "everything", "unusable"],
)
def test_hints_tell_what_usable_environments_reach(
    environments: tuple[Environment, ...], destructive: bool, open_world: bool
) -> None:
    hints = run_tool.hints(environments)
    assert hints["destructiveHint"] is destructive
    assert hints["openWorldHint"] is open_world
    assert hints["readOnlyHint"] is False


def test_a_long_unknown_argument_costs_little() -> None:
    """Compared with what is known, three megabytes would take a second of the event loop."""
    name = "program" + "".join(chr(0x4E00 + n) for n in range(5000)) * 600
    began_s = time.process_time()
    with pytest.raises(BadRequestError, match="has no argument"):
        bridge_tools.parse("execute", {name: 1})
    assert time.process_time() - began_s < 0.2


def test_the_name_of_a_program_is_text() -> None:
    assert bridge_tools.program_of("help", {"program": "a"}) == "a"
    for arguments in ({}, {"program": ["a"]}):
        with pytest.raises(BadRequestError, match="`program`"):
            bridge_tools.program_of("help", arguments)
