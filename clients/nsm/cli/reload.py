"""`nsm reload`: the supervisor becomes the program that is installed now."""

from __future__ import annotations

from nsm.cli import running, terminal
from nsm.cli.options import EXIT_OK, Parser

_EPILOG = """\
For a new version, or settings that only a start reads. Sessions stay, and what runs in them goes
on; clients connect again by themselves. The process keeps its number. Where the program that is
installed now would not start, the supervisor goes on as it is, and this says why.
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "reload",
        "Have the supervisor start anew, with all sessions; returns when it answers again. "
        "Starts none.",
        _EPILOG,
    )
    parser.add_json("one object with version, pid and sessions, or null when no supervisor runs,")
    return parser


def main(arguments: list[str]) -> int:
    """Reload."""
    options = parser().parse_args(arguments)
    client = running.connect()
    if client is None:
        terminal.out("null" if options.json else "")
        return EXIT_OK
    with client:
        client.reload()
        status = client.status()
    if options.json:
        names = ("version", "pid", "sessions")
        terminal.out_json({name: getattr(status, name) for name in names})
    else:
        plural = "s" * (status.sessions != 1)
        terminal.out(
            f"supervisor {status.pid} is {status.version} now, with {status.sessions} "
            f"session{plural}"
        )
    return EXIT_OK
