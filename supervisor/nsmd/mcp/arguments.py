"""Checks of a call's arguments, by hand: the message to a model must say what to write instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

from nsm.dataclass import dataclass
from nsm.suggestion import did_you_mean
from nsm.wire.errors import BadRequestError, CodeTooLargeError
from nsmd.model import names
from nsmd.model.values import MAX_CODE_BYTES

_DIRECTORIES = ("cwd", "directory", "workdir", "working_dir", "working_directory")
_NOTHING = ("", "null", "none", "undefined")
_FLAGS = {"true": True, "false": False, **dict.fromkeys(_NOTHING, False)}
_SHOWN_CHARS = 60
_JOB_DIGITS = 9


class JobId(NamedTuple):
    """Id of a job for a model: `SESSION/NUMBER`."""

    session: str
    number: str

    def __str__(self) -> str:
        return f"{self.session}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """Checked arguments of `run` (`nsmd.model.values.RunRequest`).

    Attributes:
        code, env: empty if they are left out, as a call about a job or a reset may.
    """

    code: str = ""
    env: str = ""
    session: str | None = None
    timeout_s: float | None = None
    background: bool = False
    job: JobId | None = None
    stop: bool = False
    reset: bool = False
    undo: bool = False
    fork_of: str | None = None


def parse_arguments(arguments: object) -> RunArguments:
    """Check the arguments of a call of `run`.

    Several clients send every optional argument: null, an empty text, a time limit of 0, and a
    session called null or none count as left out.

    Raises `BadRequestError` or `CodeTooLargeError`.
    """
    if arguments is None:
        given: Mapping[str, object] = {}
    elif isinstance(arguments, dict):
        given = cast("Mapping[str, object]", arguments)
    else:
        raise BadRequestError(
            f"The arguments must be an object, not {_kind(arguments)}.", hint=_EXAMPLE
        )
    read: dict[str, Any] = {}
    for name, value in _with_env(given).items():
        if value is not None:
            if (reader := _READERS.get(name)) is None:
                raise _unknown(name)
            read[name] = reader(value)
    session, timeout_s = read.get("session"), read.get("timeout_seconds")
    background, stop, reset, undo = (
        read.get(name, False) for name in ("background", "stop", "reset", "undo")
    )
    job = job_id(read.get("job"), session)
    fork_of = read.get("fork_of")
    if fork_of is not None and (job is not None or background or reset or undo):
        raise BadRequestError(
            "`fork_of` runs `code` in a new session, and goes with `env` and `session` only.",
            hint="Make two calls. The code was not run.",
        )
    code, env = read.get("code"), read.get("env")
    if job is not None:
        if code or background or reset or undo:
            raise BadRequestError(
                "`job` asks about a job, so the call can run no code.",
                hint="Make two calls. The code was not run.",
            )
        return RunArguments(job=job, stop=stop, timeout_s=timeout_s)
    if stop:
        raise BadRequestError("`stop` needs `job`: the id of the job to end.", hint=_JOB_EXAMPLE)
    if undo:
        if code or background or reset or session in (None, names.NEW):
            raise BadRequestError(
                "`undo` takes back the last call of `session`, and runs no code.",
                hint='Make two calls. Example: {"session": "work", "undo": true}.',
            )
        return RunArguments(session=session, undo=True)
    if background or reset:
        _check_session(session, "background" if background else "reset", fresh=not background)
    if background and reset:
        raise BadRequestError(
            "`reset` is about the session's interpreter, which `background` does not use.",
            hint="Make two calls. The code was not run.",
        )
    if code is None and not reset:
        raise BadRequestError("`code` is missing.", hint=_EXAMPLE)
    if env is None and not (reset or fork_of):
        raise BadRequestError("`env` is missing: the environment to run in.", hint=_EXAMPLE)
    return RunArguments(
        code=code or "",
        env=env or "",
        session=session,
        timeout_s=timeout_s,
        background=background,
        reset=reset,
        fork_of=fork_of,
    )


_JOB_EXAMPLE = 'Example: {"job": "work/1", "stop": true}.'
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
    guess = did_you_mean(name, list(_READERS), cutoff=0.5)
    return BadRequestError(
        f"`run` has no argument {_shown(name)}.",
        hint=f"{guess}It takes {', '.join(_READERS)}. The code was not run.",
    )


def _code(code: object) -> str:
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
    if not isinstance(env, str):
        raise BadRequestError(f"`env` must be a string, not {_kind(env)}.", hint=_EXAMPLE)
    return env


def _session(session: object) -> str | None:
    if _is_nothing(session):
        return None
    if not isinstance(session, str):
        raise BadRequestError(
            f"`session` must be a string, not {_kind(session)}.",
            hint="Leave it out for a fresh jail that is thrown away.",
        )
    return names.check(session)


def _fork_of(session: object) -> str | None:
    if _is_nothing(session):
        return None
    if not isinstance(session, str):
        raise BadRequestError(
            f"`fork_of` must be the name of a session, not {_kind(session)}.",
            hint="The code was not run.",
        )
    return names.check(session)


def _check_session(session: str | None, name: str, *, fresh: bool) -> None:
    """Check that a call names a session."""
    if session is None or (session == names.NEW and not fresh):
        raise BadRequestError(
            f"`{name}` needs `session`: a name that you choose.",
            hint="A session that does not exist is made. The code was not run.",
        )


def job_id(job: object, session: str | None) -> JobId | None:
    """Read the id of a job, which may leave out its session if the call names that."""
    if isinstance(job, int) and not isinstance(job, bool):
        job = str(job)
    if job is None or _is_nothing(job):
        return None
    if not isinstance(job, str):
        raise BadRequestError(f"`job` must be a string, not {_kind(job)}.", hint=_JOB_EXAMPLE)
    own, _, number = job.strip().rpartition("/")
    own = own or session or ""
    if not own or not number.isdecimal() or len(number) > _JOB_DIGITS:
        raise BadRequestError(
            f"`job` must be an id like work/1, not {_shown(job)}.",
            hint="A call with `background` gives it.",
        )
    return JobId(names.check(own), number)


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and (word := value.strip().casefold()) in _FLAGS:
        return _FLAGS[word]
    raise BadRequestError(f"`{name}` must be true or false, not {_kind(value)}.", hint=_EXAMPLE)


def _timeout(timeout: object) -> float | None:
    if _is_nothing(timeout):
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


_READERS: Mapping[str, Callable[[object], Any]] = {
    "code": _code,
    "env": _env,
    "session": _session,
    "timeout_seconds": _timeout,
    "background": partial(_flag, "background"),
    "job": lambda job: job,  # it may leave out the session
    "stop": partial(_flag, "stop"),
    "reset": partial(_flag, "reset"),
    "undo": partial(_flag, "undo"),
    "fork_of": _fork_of,
}
"""Arguments in the order in which they are told, and how the value of each is read."""


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
