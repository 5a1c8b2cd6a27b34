"""Parts that `claudebox` and `nsm box` share: words to a request, errors to exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nsm.dataclass import replace
from nsmbox import profiles
from nsmbox.host.added_directories import parse
from nsmbox.host.facts import BoxRequest
from nsmbox.model import settings
from nsmbox.model.plan import BOUNDS, MODES, BoxError, BoxLimits, Network, complete_limits
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
        _request(
            table, profiles.load("claude"), arguments, variables, complete_limits(table.limits)
        ),
        Way(program="claudebox", mistake=mistake, **dict.fromkeys(own, True)),
        variables,
    )


def of_box(options: Namespace, command: Sequence[str], variables: Mapping[str, str]) -> int:
    """`nsm box`, with the options of `nsmbox.cli.box`."""
    table, mistake = _configured(check=options.check)
    profile = profiles.load(options.profile or table.profile or DEFAULT_PROFILE)
    limits = complete_limits({**table.limits, **dict(options.limit or ())})
    asked = _request(table, profile, command, variables, limits)
    given = {
        "network": options.network,
        "protect": options.protect,
        "unprotected": options.unprotect,
        "programs": options.bridge,
        "secrets": None if options.secrets is None else tuple(options.secrets),
    }
    passed = (name for name, value in options.env if value is None)
    return run(
        replace(
            asked,
            **{name: value for name, value in given.items() if value is not None},
            extra=(*asked.extra, *passed),
            add=(*asked.add, *options.add),
            hide=(*asked.hide, *options.hide),
            worktrees=options.worktrees,
            set={name: value for name, value in options.env if value is not None},
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


def _request(
    table: settings.BoxSettings,
    profile: profiles.Profile,
    command: Sequence[str],
    variables: Mapping[str, str],
    limits: BoxLimits,
) -> BoxRequest:
    """Make the request for which the configuration asks."""
    return BoxRequest(
        profile=profile,
        command=tuple(command),
        network=table.net,
        protect=table.protect,
        protect_paths=table.protect_paths,
        unprotected=table.unprotect,
        extra=(*extra(variables), *table.env),
        show=table.show if profile.shows_listed else (),
        programs=table.bridge,
        secrets=table.secrets,
        add=tuple(parse(text, "[box] add") for text in table.add),
        hide=table.hide,
        persist=table.persist,
        limits=limits,
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
