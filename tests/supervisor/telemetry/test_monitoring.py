"""Metrics and labels that the Prometheus and Grafana files name: all of them exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # no stubs in the development set-up

from nsmd.telemetry.counts import FAMILIES

DIRECTORY = Path(__file__).resolve().parents[3] / "monitoring"
DASHBOARD = json.loads((DIRECTORY / "grafana-dashboard.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((DIRECTORY / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
GRAFANA = {"$__rate_interval": "5m", "$instance": ".*", "$env": ".*"}
"""Grafana puts these in before Prometheus sees a query."""


def labels_of_series() -> dict[str, set[str]]:
    """Collect the labels of each of our series in Prometheus."""
    found = {"up": {"instance", "job"}}
    for family in FAMILIES.values():
        own = {*family.labels, "instance", "job"}
        if family.kind == "histogram":
            found |= {f"{family.name}_count": own, f"{family.name}_sum": own}
            found[f"{family.name}_bucket"] = own | {"le"}
        else:
            found[family.exported_name] = own
    return found


def queries() -> list[str]:
    found = [target["expr"] for each in DASHBOARD["panels"] for target in each.get("targets", ())]
    found += [each["expr"] for each in DASHBOARD["annotations"]["list"]]
    for variable, value in GRAFANA.items():
        found = [query.replace(variable, value) for query in found]
    return found + [rule["expr"] for rule in RULES]


def test_queries_name_metrics_and_labels_that_exist() -> None:
    labels = labels_of_series()
    for query in queries():
        series = re.findall(r"\b((?:nsm|process)_\w+|up)\b(?:\{([^}]*)\})?", query)
        assert series, query
        for name, matchers in series:
            assert set(re.findall(r"(\w+)=", matchers)) <= labels[name], query
        for by in re.findall(r"\bby \(([^)]*)\)", query):
            assert any(set(re.split(r",\s*", by)) <= labels[name] for name, _ in series), query


@pytest.mark.parametrize(
    "command",
    [
        "check config --syntax-only prometheus.yml",
        "check rules alerts.yml",
        "test rules alerts.test.yml",
    ],
)
def test_promtool_accepts_the_files(command: str) -> None:
    promtool("", *command.split())


async def test_promtool_accepts_the_text_of_a_supervisor() -> None:
    from control_bench import bench

    async with bench() as it:
        peer = await it.connect()
        await peer.call("run", env="python", code="1")
        text, _ = await it.telemetry.text()
    promtool(text.decode(), "check", "metrics")


def promtool(given: str, *arguments: str) -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("not here: promtool (Debian's package prometheus)")
    done = subprocess.run(
        [program, *arguments],
        input=given,
        cwd=DIRECTORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
