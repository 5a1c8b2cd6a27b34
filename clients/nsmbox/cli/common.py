"""Parts that `claudebox` and `nsm box` share: words to a request, errors to exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from nsmbox import profiles
from nsmbox.host.added_directories import RequestedDirectory, parse
from nsmbox.host.facts import BoxRequest
from nsmbox.model import settings
from nsmbox.model.plan import BOUNDS, MODES, BoxError, Network, complete_limits
from nsmbox.start.run import EXIT_INTERRUPTED, Way, run

if TYPE_CHECKING:
    from argparse import Namespace

DEFAULT_PROFILE = "shell"

EXIT_BROKEN_PIPE = 141

EXTRA_VARIABLES = "CLAUDEBOX_EXTRA_ENV"
"""The caller's variable with names of more that pass, separated by commas."""


def of_claude(own: set[str], arguments: list[str], variables: Mapping[str, str]) -> int:
    """`claudebox`, with the names of its own options that were given."""
    table, mistake = _configured(check="check" in own)
    return run(
        BoxRequest(
            profile=profiles.load("claude"),
            command=tuple(arguments),
            network=table.net,
            protect=table.protect,
            protect_paths=table.protect_paths,
            unprotected=table.unprotect,
            extra=(*extra(variables), *table.env),
            programs=table.bridge,
            secrets=table.secrets,
            add=added(table),
            hide=table.hide,
            persist=table.persist,
            limits=complete_limits(table.limits),
        ),
        Way(
            program="claudebox",
            yes="yes" in own,
            dry_run="dry_run" in own,
            check="check" in own,
            mistake=mistake,
        ),
        variables,
    )


def of_box(options: Namespace, command: tuple[str, ...], variables: Mapping[str, str]) -> int:
    """`nsm box`, with the options of `nsmbox.cli.box`."""
    table, mistake = _configured(check=options.check)
    kind = profiles.load(options.profile or table.profile or DEFAULT_PROFILE)
    return run(
        BoxRequest(
            profile=kind,
            command=command,
            network=table.net if options.network is None else options.network,
            protect=table.protect if options.protect is None else options.protect,
            protect_paths=table.protect_paths,
            unprotected=table.unprotect if options.unprotect is None else options.unprotect,
            extra=(
                *extra(variables),
                *table.env,
                *(name for name, value in options.env if value is None),
            ),
            show=table.show if kind.shows_listed else (),
            programs=table.bridge if options.bridge is None else options.bridge,
            secrets=table.secrets if options.secrets is None else tuple(options.secrets),
            add=(*added(table), *options.add),
            hide=(*table.hide, *options.hide),
            worktrees=options.worktrees,
            persist=table.persist,
            set={name: value for name, value in options.env if value is not None},
            limits=complete_limits({**table.limits, **dict(options.limit or ())}),
        ),
        Way(
            program="nsm box",
            yes=options.yes,
            dry_run=options.dry_run,
            check=options.check,
            mistake=mistake,
        ),
        variables,
    )


def _configured(*, check: bool) -> tuple[settings.BoxSettings, BoxError | None]:
    """Read the configuration, or return its mistake if that is one check of many."""
    try:
        return settings.load(), None
    except BoxError as error:
        if not check:
            raise
        return settings.BoxSettings(), error


def extra(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Names that pass besides the profile's."""
    names = [name.strip() for name in variables.get(EXTRA_VARIABLES, "").split(",")]
    for name in filter(None, names):
        if not settings.is_variable_name(name):
            raise BoxError(
                f"{EXTRA_VARIABLES} has {name!r} in it, which is not a variable name",
                hint=f'Names are separated by commas: {EXTRA_VARIABLES}="GH_TOKEN,HTTP_PROXY".',
                exit_code=2,
            )
    return tuple(dict.fromkeys(filter(None, names)))


def added(table: settings.BoxSettings) -> tuple[RequestedDirectory, ...]:
    """Directories that the configuration adds to every box."""
    return tuple(parse(text, "[box] add") for text in table.add)


def network(text: str) -> Network:
    """`off`, `full`, or hosts separated by commas; `network_request` reads older spellings too."""
    from nsm.wire.inspection import network_request  # noqa: PLC0415  # most starts name none

    asked = network_request(text)
    return Network(mode=MODES[asked.mode], allow=asked.allow)


def programs(text: str) -> tuple[str, ...]:
    """Names of the bridge's programs, separated by commas; none of them is none.

    Raises:
        ValueError: not all of them can be names of programs, or there are too many.
    """
    names = tuple(dict.fromkeys(filter(None, (name.strip() for name in text.split(",")))))
    if len(names) > settings.MAX_PROGRAMS or not all(map(settings.is_program_name, names)):
        raise ValueError(text)
    return names


def limit(text: str) -> tuple[str, int]:
    """One limit, as NAME=NUMBER.

    Raises:
        ValueError: it is none, or out of its bounds; the message is for people.
    """
    name, _, value = text.partition("=")
    if name not in BOUNDS:
        raise ValueError(f"{text!r:.100} is not NAME=NUMBER; names are {', '.join(BOUNDS)}")
    least, most = BOUNDS[name]
    number = int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else 0
    if not least <= number <= most:
        raise ValueError(f"{name} is {value!r:.40}, expected a number from {least} to {most}")
    return name, number


def guarded(program: str, action: Callable[[], int]) -> int:
    """Do it; what goes wrong becomes a message and an exit code."""
    from nsm.cli import terminal  # noqa: PLC0415  # after what an interrupt may be told of

    terminal.set_up()
    try:
        code = action()
        sys.stdout.flush()
    except BoxError as error:
        _tell(f"{program}: {error.message}" + (f"\n{error.hint}" if error.hint else ""))
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        terminal.drop_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        from nsm.cli.render.formats import os_error  # noqa: PLC0415  # rarely needed

        _tell(f"{program}: {os_error(error)}")
        return 1
    return code


def _tell(text: str) -> None:
    from nsm.cli.render.formats import visible_lines  # noqa: PLC0415  # rarely needed

    sys.stderr.write(visible_lines(text) + "\n")
