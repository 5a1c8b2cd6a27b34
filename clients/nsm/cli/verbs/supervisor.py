"""Verbs about the supervisor: `status`, `drain`, `reload`, `shutdown`, `http` and `config`."""

from __future__ import annotations

import os
import select
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from nsm import paths
from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.cli.render import formats
from nsm.cli.render.formats import count, visible
from nsm.client.blocking import Client
from nsm.wire.errors import DisconnectedError, NsmError
from nsm.wire.messages import read

if TYPE_CHECKING:
    from argparse import Namespace

    from nsm.wire.status import DrainProgress, DrainReport, ReloadReport

AS_JSON = cli.as_json("one object, or null when no supervisor runs,")

_OPENMETRICS = "application/openmetrics-text; version=1.0.0"

_EPILOG_OF_POOL = """\
HITS: sessions that were ready when asked for. MISSES had to be started first.
REFILL: median time of a start. P95: 95 of 100 starts take no longer.
"""


_EPILOG_OF_TIMES = """\
Since the supervisor started. P50: half of the executions took no longer. P90, P99: 90 and 99 of
100 took no longer. These are estimates, at most 25 % off; MAX is exact. WAIT is the time before the
code was sent to its session.
"""


_EPILOG_OF_METRICS = """\
Lines with `# HELP` explain the metrics. docs/how-to/operations.md says how Prometheus gets them.

examples:
  nsm status metrics | grep ^nsm_sessions
  nsm status metrics > /var/lib/prometheus/node-exporter/nsm.prom
"""

_status = cli.verb(
    "status",
    "Show the supervisor's version, process, socket and counts. Starts no supervisor.",
    "Without an ACTION it exits 1 when no supervisor runs.",
    AS_JSON,
)


@_status
def _show(options: Namespace) -> None:
    from nsm.cli.render.supervisor import status_lines  # noqa: PLC0415  # of one verb

    with connection.running(options, code=cli.EXIT_FAILED) as client:
        status = client.status()
    terminal.answer(options, status, lambda: status_lines(status))


@_status.action(
    "pool", "show the sessions that are kept ready, and why so many", _EPILOG_OF_POOL, AS_JSON
)
def _pool(options: Namespace) -> None:
    from nsm.cli.render.supervisor import pool_table  # noqa: PLC0415  # of one verb

    with connection.running(options) as client:
        report = client.pool()
    home = os.path.expanduser("~")
    terminal.answer(options, report, lambda: pool_table(report, home, terminal.width()))


@_status.action("times", "show how long things take", _EPILOG_OF_TIMES, AS_JSON)
def _times(options: Namespace) -> None:
    from nsm.cli.render.supervisor import times_tables  # noqa: PLC0415  # of one verb
    from nsm.wire.telemetry import Stats  # noqa: PLC0415  # likewise

    with connection.running(options) as client:
        stats = read(Stats, client.call("stats"))
    terminal.answer(options, stats, lambda: times_tables(stats, terminal.width()))


@_status.action(
    "metrics",
    "print all that is counted, for Prometheus",
    _EPILOG_OF_METRICS,
    cli.flag("--openmetrics", "print the format OpenMetrics 1.0"),
)
def _metrics(options: Namespace) -> None:
    from nsm.wire.telemetry import metrics_text  # noqa: PLC0415  # of this action alone

    with connection.running(code=cli.EXIT_FAILED) as client:
        wire = client.call("metrics", {"accept": _OPENMETRICS} if options.openmetrics else {})
    terminal.out(metrics_text(wire).removesuffix("\n"))


_EPILOG_OF_DRAIN = """\
Code that comes meanwhile is refused before anything of it has run; sessions are kept as they
are, and files, logs and lists go on working. The supervisor goes on, and refuses, until
`nsm drain --cancel`, `nsm shutdown` or its end. Ctrl-C stops the waiting, not the drain.
"""


@cli.verb(
    "drain",
    "Take no new work, and return when nothing runs any more. Starts no supervisor.",
    _EPILOG_OF_DRAIN,
    cli.either(
        cli.value(
            "--timeout SECONDS",
            "interrupt what still runs after that (default: each runs to its own limit)",
            cli.seconds,
        ),
        cli.flag("--cancel", "accept new work again"),
    ),
    AS_JSON,
)
def _drain(options: Namespace) -> int:
    last: tuple[int, int] | None = None

    def show(progress: DrainProgress) -> None:
        """Say it whenever there is less left, or the deadline has come."""
        nonlocal last
        now = progress.left, progress.interrupted
        if now == last or not progress.left:
            return
        last = now
        text = f"{count(progress.left, 'execution')} left"
        if progress.interrupted:
            text += ", interrupted"
        elif progress.remaining_s is not None:
            text += f", interrupted in {formats.duration(progress.remaining_s)}"
        terminal.note(text)

    with connection.running(options) as client:
        if options.cancel:
            report = client.undrain()
        else:
            report = client.drain(timeout_s=options.timeout, on_progress=show)
    terminal.answer(options, report, lambda: _drained(report, cancelled=options.cancel))
    return (
        cli.EXIT_OK
        if report.drained or report.cancelled or options.cancel
        else cli.EXIT_INTERRUPTED
    )


def _drained(report: DrainReport, *, cancelled: bool) -> str:
    if report.cancelled:
        return "new work is taken again"
    if cancelled:
        return "nothing was being drained that can be taken back"
    kept = f"{count(report.sessions, 'session')} kept"
    if not report.drained:
        return f"still draining: {count(report.left, 'execution')} left, {kept}"
    stopped = f", {count(report.interrupted, 'execution')} interrupted" * bool(report.interrupted)
    return f"drained: nothing runs, {kept}{stopped}"


_EPILOG_OF_RELOAD = """\
With --config it only reads `config.toml` again, and says what has changed. If there are mistakes,
it changes nothing and exits 1.

Without --config it starts the installed version with the settings of now. Sessions stay, what runs
in them goes on, and clients connect again by themselves. If the installed version does not start,
or cannot take over some sessions, nothing changes, and the reason is printed. --force ends sessions
that it cannot take over. Starts no supervisor where none runs.

Exits 1 if there are sessions that this version cannot use, since another one made them. They live
on: `nsm ps` lists them, `nsm kill` ends them, and a version that can use them takes them over.

Programs of the bridge do not go on: they have `[drain] timeout_seconds` to end, and are stopped
then. `nsm drain` waits for them as long as it takes.
"""


MAX_TOLD = 10
"""Programs that are named."""


@cli.verb(
    "reload",
    "Restart the supervisor and keep all sessions; returns when it answers again.",
    _EPILOG_OF_RELOAD,
    cli.flag("--config", "only read the configuration again"),
    cli.flag("--force", "end sessions that the new program cannot take over"),
    cli.as_json("one object with version, pid and sessions, or null when no supervisor runs,"),
)
def _reload(options: Namespace) -> int:
    with connection.running(options) as client:
        if options.config:
            return _read_configuration_again(client, options)
        client.reload(lambda report: terminal.note(waits(report)), force=options.force)
        status = client.status()
        unusable = [row for row in client.sessions() if row.state == "unreadable"]
        _note_not_preloaded(client)
    names = ("version", "pid", "sessions")
    terminal.answer(
        options,
        {name: getattr(status, name) for name in names},
        lambda: (
            f"supervisor {status.pid} is {status.version} now, with "
            + count(status.sessions, "session")
        ),
    )
    for row in unusable:
        terminal.note(
            visible(f"the supervisor cannot use session {row.name or row.id}, which lives on")
        )
    if unusable:
        terminal.note(visible(f"{status.survival.unread}; `nsm doctor` says what to do"))
    return cli.EXIT_FAILED if unusable else cli.EXIT_OK


def _note_not_preloaded(client: Client) -> None:
    from nsm.cli.render.environments import not_preloaded  # noqa: PLC0415  # of one verb

    for line in not_preloaded(client.envs(preload=True)):
        terminal.note(line)


def waits(report: ReloadReport) -> str:
    """Describe the wait; nothing in the text drives a terminal."""
    told = [
        f"{each.program} (asked for by {each.client} in {each.scope})"
        for each in report.waits_for[:MAX_TOLD]
    ]
    if len(report.waits_for) > MAX_TOLD:
        told.append(f"{len(report.waits_for) - MAX_TOLD} more")
    programs = "programs that the bridge has started"
    if not report.waits_s:
        return visible(f"stopping {programs}: {', '.join(told)}")
    bound = f"waiting {report.waits_s:g} s at most"
    return visible(f"{bound} for {programs}, which are stopped then: {', '.join(told)}")


def _read_configuration_again(client: Client, options: Namespace) -> int:
    answer = client.call("config_reload")
    _note_not_preloaded(client)
    problems: list[str] = [str(problem) for problem in answer.get("problems", ())]
    if options.json:
        terminal.out_json({"changes": answer["changes"], "problems": problems})
    elif problems:
        for problem in problems:
            terminal.note(visible(problem))
        terminal.note("nothing was changed. Correct these, then reload again.")
    else:
        changes = read(list[dict[str, object]], answer, "changes")
        for row in changes:
            when = "" if row["applied"] else "  (after `nsm reload`)"
            terminal.out(visible(f"{row['key']}: {row['old']} -> {row['new']}{when}"))
        if not changes:
            terminal.out("nothing has changed")
    return cli.EXIT_FAILED if problems else cli.EXIT_OK


END_TIMEOUT_S = 30.0
"""Time limit for the process to end after its last client: jails and the holder end first."""


@cli.verb(
    "shutdown",
    "End the supervisor and all sessions; returns when it has ended. Starts no supervisor.",
    "On a terminal you are asked first, if there are sessions. `nsm reload` restarts the\n"
    "supervisor and keeps them.",
    cli.YES,
    cli.as_json(
        "an array of the supervisors that were ended, each with its pid and its number of sessions,"
    ),
)
def _shutdown(options: Namespace) -> int:
    asks = terminal.may_ask() and not (options.yes or options.json)
    with connection.running(options, "[]") as client, ExitStack() as stack:
        if asks and not connection.agreed_to_end(client):
            return cli.EXIT_FAILED
        sessions = client.status().sessions
        pid = client.server.pid
        process = _process(pid)
        if process is not None:
            stack.callback(os.close, process)
        client.shutdown()
        # It has closed the connection. What it holds for the next one, as HTTP's port, is free when
        # the process has ended.
        if process is not None and not select.select([process], [], [], END_TIMEOUT_S)[0]:
            raise DisconnectedError(
                f"the supervisor has not ended within {END_TIMEOUT_S:.0f} s",
                hint=f"Its process is {pid}.",
            )
    also = f" and {count(sessions, 'session')}" if sessions else ""
    terminal.answer(
        options, [{"pid": pid, "sessions": sessions}], lambda: f"ended supervisor {pid}{also}"
    )
    return cli.EXIT_OK


def _process(pid: int | None) -> int | None:
    """A descriptor that tells the end of the supervisor's process (pidfd_open(2)); None where its
    number means nothing here: on another system, or among other processes."""
    from nsm.hosts.place import client_socket  # noqa: PLC0415  # of one verb
    from nsm.startup.start import peer_of  # noqa: PLC0415  # likewise

    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(client_socket())
            peer, _, _ = peer_of(link)
        return os.pidfd_open(peer) if peer == pid != os.getpid() else None
    except (OSError, AttributeError):
        return None


@cli.verb(
    "http",
    "Show where MCP is served over HTTP, or the token that its clients need.",
    "Starts no supervisor. `nsm http` exits 1 where nothing is served.\n"
    "`nsm http token` makes the token where there is none yet; whoever has it may run code.",
    cli.operand("[action]", "what to show", choices=["status", "token"], default="status"),
    cli.flag("--rotate", "with `token`: make a new one, which applies at once"),
    cli.as_json("one object, or null when no supervisor runs,"),
)
def _http(options: Namespace) -> int:
    if options.action == "token":
        return _token(options)
    if options.rotate:
        raise cli.UsageError("--rotate is for `nsm http token`")
    with connection.running(options, code=cli.EXIT_FAILED) as client:
        facts = client.call("http")
    terminal.answer(options, facts, lambda: "\n".join(map(visible, _http_lines(facts))))
    return cli.EXIT_OK if facts["url"] else cli.EXIT_FAILED


def _token(options: Namespace) -> int:
    from nsm.http import token as httptoken  # noqa: PLC0415  # of one action

    # In a box the file would be another one, which lets nobody in.
    connection.need_installed()
    path = paths.http_token_path()
    try:
        token = httptoken.rotate(path) if options.rotate else httptoken.ensure(path)
    except httptoken.TokenError as error:
        terminal.note(str(error))
        return cli.EXIT_FAILED
    if options.rotate:
        # A supervisor looks at the file then, which ends what the old one has let in.
        with suppress(NsmError), Client(autostart=False) as client:
            client.call("http")
    terminal.answer(options, {"token": token, "file": path}, lambda: token)
    return cli.EXIT_OK


def _http_lines(facts: dict[str, Any]) -> list[str]:
    if not facts["enabled"]:
        return [
            "off: once config.toml has `enabled = true` in section [http], `nsm reload` turns it on"
        ]
    rows = [
        ("url", facts["url"] or "none"),
        ("listen", facts["listen"]),
        ("token", f"nsm http token  ({paths.http_token_path()})"),
        ("connections", f"{facts['connections']} of {facts['max_connections']}"),
    ]
    if facts["problem"]:
        rows.append(("problem", facts["problem"]))
    refused = facts["refused"]
    if refused:
        told = ", ".join(f"{number} for {why}" for why, number in sorted(refused.items()))
        rows.append(("refused", told))
    return [f"{name:<12} {text}" for name, text in rows]


@cli.verb(
    "config",
    "Check the configuration, or show what is in effect.",
    "Exits 1 when the configuration has mistakes; each is named with its key.\n"
    "`check` also names devices and images that this machine lacks. Those are no mistakes.\n"
    "`nsm reload --config` has the supervisor read it again.",
    cli.operand("{check,show}", "what to do", dest="action", choices=["check", "show"]),
    cli.value("--config FILE", "instead of the user's own config.toml"),
    cli.as_json("with `show`, the configuration"),
)
def _config(options: Namespace) -> int:
    more = ["--config", options.config] if options.config is not None else []
    if options.json:
        if options.action != "show":
            raise cli.UsageError("--json goes with `nsm config show` only")
        more.append("--json")
    return connection.become_supervisor(f"--{options.action}-config", *more)
