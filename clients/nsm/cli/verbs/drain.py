"""`nsm drain`: nothing new is begun, and what runs comes to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_INTERRUPTED, EXIT_OK, Parser, seconds
from nsm.cli.render import formats

if TYPE_CHECKING:
    from nsm.wire.status import DrainProgress, DrainReport

_EPILOG = """\
Code that comes meanwhile is refused before anything of it has run; sessions are kept as they
are, and files, logs and lists go on working. The supervisor goes on, and refuses, until
`nsm drain --cancel`, `nsm shutdown` or its end. Ctrl-C stops the waiting, not the drain.
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "drain",
        "Take no new work, and return when nothing runs any more. Starts no supervisor.",
        _EPILOG,
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="interrupt what still runs after that (default: each runs to its own limit)",
    )
    choice.add_argument("--cancel", action="store_true", help="accept new work again")
    parser.add_json("one object, or null when no supervisor runs,")
    return parser


def main(arguments: list[str]) -> int:
    """Drain, and say how it comes along."""
    options = parser().parse_args(arguments)
    client = connection.connect(options)
    if client is None:
        return EXIT_OK
    with client:
        if options.cancel:
            report = client.undrain()
        else:
            report = client.drain(timeout_s=options.timeout, on_progress=_Progress().show)
    terminal.answer(options, report, lambda: _words(report, cancelled=options.cancel))
    return EXIT_OK if report.drained or report.cancelled or options.cancel else EXIT_INTERRUPTED


def _words(report: DrainReport, *, cancelled: bool) -> str:
    if report.cancelled:
        return "new work is taken again"
    if cancelled:
        return "nothing was being drained that can be taken back"
    kept = f"{_count(report.sessions, 'session')} kept"
    if not report.drained:
        return f"still draining: {_count(report.left, 'execution')} left, {kept}"
    stopped = f", {_count(report.interrupted, 'execution')} interrupted" * bool(report.interrupted)
    return f"drained: nothing runs, {kept}{stopped}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


class _Progress:
    """A line on standard error whenever there is less left, or the deadline has come."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def show(self, progress: DrainProgress) -> None:
        """Say it, if it is news."""
        now = progress.left, progress.interrupted
        if now == self._last or not progress.left:
            return
        self._last = now
        left = _count(progress.left, "execution")
        if progress.interrupted:
            terminal.note(f"{left} left, interrupted")
        elif progress.remaining_s is None:
            terminal.note(f"{left} left")
        else:
            terminal.note(f"{left} left, interrupted in {formats.duration(progress.remaining_s)}")
