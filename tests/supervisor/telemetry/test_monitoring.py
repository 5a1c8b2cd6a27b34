"""Metrics and labels that the Prometheus and Grafana files name: all of them exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]  # no stubs in the development set-up

from nsmd.telemetry.counts import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY = Path(__file__).resolve().parents[3] / "monitoring"
DASHBOARD = json.loads((DIRECTORY / "grafana-dashboard.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((DIRECTORY / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]


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


LABELS = labels_of_series()

# Grafana puts these in before Prometheus sees a query.
GRAFANA = {"$__rate_interval": "5m", "$instance": ".*", "$env": ".*"}


def dashboard_queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (each["expr"] for each in DASHBOARD["annotations"]["list"])


def plain(query: str) -> str:
    for variable, value in GRAFANA.items():
        query = query.replace(variable, value)
    return query


QUERIES = [*(plain(query) for query in dashboard_queries()), *(rule["expr"] for rule in RULES)]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_what_there_is(query: str) -> None:
    series = re.findall(r"\b((?:nsm|process)_\w+|up)\b(?:\{([^}]*)\})?", query)
    assert series, "a query of nothing"
    for name, matchers in series:
        assert name in LABELS, name
        used = set(re.findall(r"(\w+)=", matchers))
        assert used <= LABELS[name], (name, used)
    for by in re.findall(r"\bby \(([^)]*)\)", query):
        wanted = set(re.split(r",\s*", by))
        assert any(wanted <= LABELS[name] for name, _ in series), by


def test_grafana_s_variables_and_panels_are_whole() -> None:
    used = {name for query in dashboard_queries() for name in re.findall(r"\$(\w+)", query)}
    asked: list[dict[str, Any]] = DASHBOARD["templating"]["list"]
    assert used == {"__rate_interval", *(each["name"] for each in asked)} - {"datasource"}
    for variable in asked:
        if variable["type"] == "query":
            asked_for = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert asked_for is not None
            metric, label = asked_for.groups()
            assert label in LABELS[metric]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & places, f"{panel['title']} lies on another panel"
        assert all(x < 24 for x, _ in cells)
        places |= cells
        if panel["type"] == "row":
            continue
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = set(
                re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"])))
            )
            assert legend <= grouped | {"instance"}, target


def test_the_dashboard_shows_every_metric_that_says_something_new() -> None:
    shown = " ".join(QUERIES)
    left_out = {name for name in FAMILIES if not re.search(rf"\b{name}(_|\b)", shown)}
    assert left_out <= {
        "nsm_build_info",  # a variable of the dashboard
        "nsm_clients_connected",
        "nsm_configuration_reloads",
        "nsm_events",
        "nsm_executions_taken_up",
        "nsm_memory_pressure",  # its alert counts what it has cost
        "process_virtual_memory_bytes",
    }


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    for label in re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())):
        by = re.findall(r"by \(([^)]*)\)", rule["expr"])
        assert not by or any(label in each for each in by), label


@pytest.mark.parametrize(
    "command",
    [
        "check config --syntax-only prometheus.yml",
        "check rules alerts.yml",
        "test rules alerts.test.yml",
    ],
)
def test_prometheus_own_tool_takes_it(command: str) -> None:
    promtool("", *command.split())


def test_prometheus_understands_the_dashboard_s_queries(tmp_path: Path) -> None:
    rules = [{"record": f"q{number}", "expr": query} for number, query in enumerate(QUERIES)]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    assert f"{len(QUERIES)} rules found" in promtool("", "check", "rules", str(path))


async def test_prometheus_own_tool_finds_no_fault_with_the_text() -> None:
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
