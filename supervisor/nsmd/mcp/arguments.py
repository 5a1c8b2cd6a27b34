"""Checks of a call's arguments, by hand: the message to a model must say what to write instead."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from nsm.dataclass import dataclass
from nsm.wire.errors import BadRequestError, CodeTooLargeError
from nsmd.model import names
from nsmd.model.values import MAX_CODE_BYTES

_NAMES = ("code", "env", "session", "timeout_seconds")
_DIRECTORIES = ("cwd", "directory", "workdir", "working_dir", "working_directory")
_NOTHING = ("", "null", "none", "undefined")
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """Checked arguments of `run` (`nsmd.model.values.RunRequest`)."""

    code: str
    env: str
    session: str | None
    timeout_s: float | None


def parse_arguments(arguments: object) -> RunArguments:
    """Check the arguments of a call of `run`.

    Several clients send every optional argument: null, an empty text, a time limit of 0, and a
    session called null or none count as left out.

    Raises:
        BadRequestError, CodeTooLargeError: the message says what was expected.
    """
    if arguments is None:
        given: Mapping[str, object] = {}
    elif isinstance(arguments, dict):
        given = cast("Mapping[str, object]", arguments)
    else:
        raise BadRequestError(
            f"The arguments must be an object, not {_kind(arguments)}.", hint=_EXAMPLE
        )
    given = _with_env(given)
    for name, value in given.items():
        if name not in _NAMES and value is not None:
            raise _unknown(name)
    return RunArguments(
        code=_code(given.get("code")),
        env=_env(given.get("env")),
        session=_session(given.get("session")),
        timeout_s=_timeout(given.get("timeout_seconds")),
    )


_EXAMPLE = 'Example: {"env": "python", "code": "print(\'hi\')"}.'


def _with_env(given: Mapping[str, object]) -> Mapping[str, object]:
    """The arguments, with `language` accepted in place of `env`."""
    if given.get("language") is None or given.get("env") not in (None, given["language"]):
        return given
    return {k: v for k, v in given.items() if k != "language"} | {"env": given["language"]}


def _unknown(name: str) -> BadRequestError:
    if name in _DIRECTORIES:
        return BadRequestError(
            f"`run` has no argument {name!r}: put `cd DIRECTORY` into the code "
            "(Python: os.chdir, Node: process.chdir).",
            hint="In a session it holds for later calls, too. The code was not run.",
        )
    if name == "language":
        return BadRequestError(
            "`language` and `env` name two environments.",
            hint="Give `env` only. The code was not run.",
        )
    # Only its beginning: megabytes take a second, in which nobody gets an answer.
    near = difflib.get_close_matches(name[:60], _NAMES, n=1, cutoff=0.5)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    return BadRequestError(
        f"`run` has no argument {_shown(name)}.",
        hint=f"{guess}It takes {', '.join(_NAMES)}. The code was not run.",
    )


def _code(code: object) -> str:
    if code is None:
        raise BadRequestError("`code` is missing.", hint=_EXAMPLE)
    if not isinstance(code, str):
        raise BadRequestError(f"`code` must be a string, not {_kind(code)}.", hint=_EXAMPLE)
    try:
        # UTF-8 takes at most four bytes per character.
        size = len(code.encode()) if not code.isascii() else len(code)
    except UnicodeEncodeError as error:
        raise BadRequestError(
            f"`code` has half of a surrogate pair at character {error.start}, which is not text.",
            hint="Write the whole character, or an escape of the programming language.",
        ) from None
    if size > MAX_CODE_BYTES:
        raise CodeTooLargeError(
            f"`code` has {size:,} bytes; the limit is {MAX_CODE_BYTES:,}.",
            hint="Write large data to a file in a session in several calls, or read it from the "
            "project directory. The code was not run.",
        )
    return code


def _env(env: object) -> str:
    if env is None:
        raise BadRequestError("`env` is missing: the environment to run in.", hint=_EXAMPLE)
    if not isinstance(env, str):
        raise BadRequestError(f"`env` must be a string, not {_kind(env)}.", hint=_EXAMPLE)
    return env


def _session(session: object) -> str | None:
    if session is None or _is_nothing(session):
        return None
    if not isinstance(session, str):
        raise BadRequestError(
            f"`session` must be a string, not {_kind(session)}.",
            hint="Leave it out for a fresh jail that is thrown away.",
        )
    return names.check(session)


def _timeout(timeout: object) -> float | None:
    if timeout is None or _is_nothing(timeout):
        return None
    if isinstance(timeout, str):
        with suppress(ValueError):
            timeout = float(timeout)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise BadRequestError(
            f"`timeout_seconds` must be a number, not {_kind(timeout)}.",
            hint="Example: 30. Leave it out for the environment's own limit.",
        )
    try:
        seconds = float(timeout)
    except OverflowError:
        seconds = math.inf
    if seconds == 0:
        return None
    if not (math.isfinite(seconds) and seconds > 0):
        raise BadRequestError(
            f"`timeout_seconds` must be a finite number above 0, not {_shown(seconds)}.",
            hint="Leave it out for the environment's own limit; more than that is clamped.",
        )
    return seconds


def _is_nothing(value: object) -> bool:
    """Return whether a text stands for an argument that a client leaves out."""
    return isinstance(value, str) and value.strip().casefold() in _NOTHING


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return f"a boolean ({str(value).lower()})"
    if isinstance(value, str):
        return f"the string {_shown(value)}"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, list):
        return "an array"
    return "an object" if isinstance(value, dict) else "null"


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}...{shown[:1]}"
