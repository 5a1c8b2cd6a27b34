"""The page of metrics, from the table in `nsmd.telemetry.counts`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from nsmd.telemetry.counts import BOUNDS, FAMILIES, SHOWN, Family

LABELS = {
    "env": "the environment's name; `(own)` for environments that only one client's configuration "
    "defines, so that its names are not shown; `(other)` beyond the first 100 names",
    "outcome": "`ok` (exit code 0), `error` (any other exit code), `timeout`, `interrupted`, "
    "`lost` (no result, because the session ended or could not start); of jobs also `stopped` (on "
    "request)",
    "gpu": "the number of `/dev/nvidiaNUMBER`",
    "limit": "`memory` or `processes`",
    "enforced_by": "`cgroup`, `watchdog` or `rlimit` ([limits](policy.md#limits))",
    "state": "of a session `starting`, `idle`, `running` or `ending`; of a spare `ready` or "
    "`starting`",
    "kind": "`forked` (from a template), `cold` (in a jail of its own), `artifact-forked` and "
    "`artifact` (the same for environments that Nix has built)",
    "cause": "`lost` (its jail died, its agent failed, or it could not start) or `ended` (a "
    "person, a client or a limit ended it)",
    "result": "`hit` or `miss`",
    "protocol": "`control` (the command line and programs), `mcp`, or `http` (MCP over it)",
    "direction": "`in` or `out`",
    "verdict": "as in [network.md](../how-to/network.md)",
    "version": "of nsm",
    "python": "of the supervisor's Python",
}
"""Values of each label."""

_HEAD = """\
# Metrics

The supervisor counts these, for Prometheus and for you.

## Looking at them

| with | you see |
| --- | --- |
| `nsm status times` | how long things take: percentiles by environment |
| `nsm events -f` | what happens, as it happens |
| `nsm status metrics` | everything below, as text |

`nsm status metrics` asks over the control socket, like every command. The socket `metrics.sock`, in
the runtime directory, also serves `/metrics` to its user over HTTP:

```text
curl --unix-socket "$XDG_RUNTIME_DIR/nsm/metrics.sock" http://localhost/metrics
```

Prometheus reads no Unix sockets. Give it a port, in `~/.config/nsm/config.toml`:

```toml
[metrics]
port = 9464
```

The port is on 127.0.0.1 only. It answers only `GET /metrics`, and only if the request names
`127.0.0.1` or `localhost` as its host, so that a web page cannot make your browser read it under
another name. Any user of the machine can read it. It has names of environments and counts, never
code, output, or names of sessions, clients, files and hosts. Without a port, let node_exporter's
textfile collector read a file that `nsm status metrics > FILE.prom` writes.

`monitoring/` has files to load into Prometheus and Grafana ([README](../../monitoring/README.md)).

Counters start at 0 in each supervisor, also in one that takes up the sessions of another. `rate()`
and `increase()` allow for that.
"""


def page() -> str:
    """Return the whole page."""
    groups = "".join(
        _section(name, list(families))
        for name, families in groupby(FAMILIES.values(), lambda f: f.group)
    )
    return f"{_HEAD}{groups}{_labels()}{_buckets()}"


def _section(name: str, families: list[Family]) -> str:
    head = f"\n## {name}\n\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
    return head + "".join(_rows(families))


def _rows(families: list[Family]) -> Iterator[str]:
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.exported_name}` | {family.kind} | {labels} | {family.help} |\n"


def _labels() -> str:
    rows = "".join(f"| `{label}` | {what} |\n" for label, what in LABELS.items())
    return f"\n## Labels\n\n| label | values |\n| --- | --- |\n{rows}"


def _buckets() -> str:
    shown = ", ".join(f"{BOUNDS[index]:g}" for index in SHOWN)
    return (
        "\n## Buckets\n\n"
        f"Histograms have these upper bounds, in seconds: {shown}.\n"
        "`nsm status times` has ten buckets per decade.\n"
    )
