"""Choice of the environment of a call that names none."""

from __future__ import annotations

from collections.abc import Sequence

from nsm.wire.errors import BadRequestError
from nsmd.environments.catalog import OTHER_NAMES
from nsmd.model.values import Environment, RunRequest
from nsmd.sessions.session import Session


def check_runs_code(environment: Environment) -> None:
    """Check that an environment has an interpreter.

    Raises:
        BadRequestError: it has none.
    """
    if environment.only_programs:
        raise BadRequestError(
            f"{environment.name!r} has no interpreter, so it runs no code.",
            hint=f"Start programs in it: `nsm exec -e {environment.name} NAME -- PROGRAM`.",
        )


def env_left_open(
    request: RunRequest,
    live: Session | None,
    environments: Sequence[Environment],
    default: str | None,
) -> str:
    """Choose the environment of a call that names none.

    Args:
        live: the session that it names.
        environments: those of the client.
        default: the configured one.

    Raises:
        BadRequestError: there is no obvious choice; the message lists the environments.
    """
    if live is not None:
        own = live.spec.environment
        if request.language not in ("", own.interpreter):
            raise BadRequestError(
                f"The session {request.session!r} runs {own.name}, and the code is for "
                f"{request.language}; it was not run.",
                hint="Use another session name, or name the environment.",
            )
        return own.name
    usable = {e.name: e for e in environments if e.problem is None}
    if default is not None and request.language:
        chosen = usable.get(OTHER_NAMES.get(default, default))
        if chosen is not None and chosen.interpreter != request.language:
            default = None  # the default cannot run it
    if named := default or request.language:
        return named
    message = "Nothing says which environment to run the code in."
    if request.session:
        message = f"There is no session {request.session!r} here, and n{message[1:]}"
    raise BadRequestError(
        message,
        hint="Name one with -e, with `env` in a call, or with `env` in [defaults] of "
        "config.toml. Available: "
        f"{', '.join(usable) or 'none'}.",
    )
