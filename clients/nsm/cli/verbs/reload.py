"""`nsm reload`: the supervisor becomes the program that is installed now, or reads its
configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser
from nsm.cli.render.environments import not_preloaded
from nsm.cli.render.formats import visible
from nsm.wire.messages import read

if TYPE_CHECKING:
    from nsm.wire.status import ReloadReport

_EPILOG = """\
With --config it only reads `config.toml` again, and tells what has changed; it exits 1 when there
are mistakes, and then nothing has.

Without, it is for a new version, or settings that only a start reads. Sessions stay, and what runs
in them goes on; clients connect again by themselves. The process keeps its number. Where the
program that is installed now would not start, or cannot take over some sessions, the supervisor
goes on as it is, and this says why. With --force, sessions that it cannot take over are ended.

It exits 1 if the supervisor has sessions that it cannot use, since another version made them. They
live on: `nsm ps` lists them, `nsm kill` ends them, and a version that can use them takes them over.

Programs of the bridge cannot go on: they have `[drain] timeout_seconds` to end, and are stopped
then. `nsm drain` waits for them as long as it takes.
"""

MAX_TOLD = 10
"""Programs that are named."""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "reload",
        "Restart the supervisor with all its sessions; returns when it answers again. Starts none.",
        _EPILOG,
    )
    parser.add_argument("--config", action="store_true", help="only read the configuration again")
    parser.add_argument(
        "--force", action="store_true", help="end sessions that the new program cannot take over"
    )
    parser.add_json("one object with version, pid and sessions, or null when no supervisor runs,")
    return parser


def main(arguments: list[str]) -> int:
    """Reload."""
    options = parser().parse_args(arguments)
    if options.config:
        return _read_configuration_again(as_json=options.json)
    client = connection.connect(options)
    if client is None:
        return EXIT_OK
    with client:
        client.reload(lambda report: terminal.note(waits(report)), force=options.force)
        status = client.status()
        unusable = [row for row in client.sessions() if row.state == "unreadable"]
        for line in not_preloaded(client.envs(preload=True)):
            terminal.note(line)
    if options.json:
        names = ("version", "pid", "sessions")
        terminal.out_json({name: getattr(status, name) for name in names})
    else:
        plural = "s" * (status.sessions != 1)
        terminal.out(
            f"supervisor {status.pid} is {status.version} now, with {status.sessions} "
            f"session{plural}"
        )
    for row in unusable:
        terminal.note(
            visible(f"the supervisor cannot use session {row.name or row.id}, which lives on")
        )
    if unusable:
        terminal.note(visible(f"{status.survival.unread}; `nsm doctor` says what to do"))
    return EXIT_FAILED if unusable else EXIT_OK


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


def _read_configuration_again(*, as_json: bool) -> int:
    """Have the supervisor read the configuration again, and show what has changed."""
    client = connection.connect()
    if client is None:
        terminal.out("null" if as_json else "")
        return EXIT_OK
    with client:
        answer = client.call("config_reload")
        for line in not_preloaded(client.envs(preload=True)):
            terminal.note(line)
    problems: list[str] = [str(problem) for problem in answer.get("problems", ())]
    if as_json:
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
    return EXIT_FAILED if problems else EXIT_OK
