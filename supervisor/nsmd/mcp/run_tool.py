"""The tool `run`: its description for a client, from the present configuration, and its arguments.

All of the description together stays under 450 tokens (at four characters each) with three
environments; `tests/supervisor/mcp/test_describe.py` measures. Arguments are checked by hand: the
message to a model must say what to write instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from nsm.dataclass import dataclass
from nsm.wire.errors import BadRequestError, CodeTooLargeError, did_you_mean
from nsm.wire.tuples import NamedTuple
from nsmd.mcp.text import one_line
from nsmd.model import names
from nsmd.model.packages import WELL_KNOWN
from nsmd.model.values import MAX_CODE_BYTES, Environment, NetworkRule, ProjectMount

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


TOOL_NAME = "run"
TITLE = "Run code in a jail"
INSTRUCTIONS = "nsm runs code in jailed sessions on this machine. Use its one tool, `run`."

INSTRUCTIONS_WITH_PROGRAMS = (
    "nsm runs code in jailed sessions on this machine: use its tool `run`. "
    "`list_programs`, `help` and `execute` start chosen programs of the machine itself."
)
"""Instructions if there are programs."""

ASKED_LATER = "the client is asked for it with the first call"
"""Reason why there is no project yet."""

_NO_SESSIONS = "(no sessions)"

_MAX_LINE_CHARS = 100
"""Largest part of an environment's description, or of a reason: not every author is brief."""

_MOST_PACKAGES = 6
_MAX_PACKAGE_CHARS = 20
"""Packages to name, and characters of each. The error about a missing one names where it is."""

_MOST_HOSTS = 5
_MAX_HOST_CHARS = 60
"""Patterns of hosts to name, and characters of each. A refusal names more."""


def describe(
    environments: Sequence[Environment],
    project: ProjectMount | None,
    reason: str,
    *,
    undo: bool = False,
    fork: bool = False,
) -> str:
    """Make the tool's description."""
    usable = [e for e in environments if e.problem is None and not e.only_programs]
    undoing = "; `undo` takes back its last call (Python; files, too)" if undo else ""
    forking = " `fork_of` copies a session (not Node);" if fork else ""
    lines = ["Run code in a jailed interpreter. `env` (time limit a call; packages):"]
    lines += [_entry(e.name, _text_of(e)) for e in usable]
    if not usable:
        lines = ["Runs code in a jail, but no environment is usable now (`nsm doctor`):"]
        lines += [_entry(e.name, one_line(e.problem or "", _MAX_LINE_CHARS)) for e in environments]
    lines.append(_project_line(project, reason))
    lines.append(f"Writable: /workspace (start directory), /tmp.{_network_sentence(usable)}")
    lines.append(
        "Without `session`, a fresh jail that is thrown away. With one, variables and files stay; "
        f'"new" opens one under a fresh name;{forking} `reset` restarts its interpreter{undoing}. '
        "Longer work: `background` runs `code` as a job beside the interpreter, and returns its "
        "id. `job` without code: what it printed since, and its state; waits `timeout_seconds` for "
        "its end, or with `stop` ends it. Plots come back as images."
    )
    lines.append(
        "`code` goes to the interpreter as it is: print('hi'), not python -c \"print('hi')\"."
    )
    return "\n".join(lines)


def instructions(has_programs: bool) -> str:
    """Describe the server as a whole."""
    return INSTRUCTIONS_WITH_PROGRAMS if has_programs else INSTRUCTIONS


def schema(
    environments: Sequence[Environment], *, undo: bool = False, fork: bool = False
) -> dict[str, Any]:
    """JSON Schema of the tool's arguments."""
    more = {"undo": {"type": "boolean"}} if undo else {}
    if fork:
        more["fork_of"] = {"type": "string"}
    usable = [environment.name for environment in environments if environment.problem is None]
    # An empty enumeration would allow nothing at all, not even the call that says why.
    env = {"type": "string", "enum": usable} if usable else {"type": "string"}
    return {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "Source code, not a shell command"},
            "env": env,
            "session": {
                "type": "string",
                "description": 'Name (A-Za-z0-9_.-) or "new"; bound to its env',
            },
            "timeout_seconds": {
                "type": "number",
                "description": "At most, and by default, the environment's limit",
            },
            "background": {"type": "boolean"},
            "job": {"type": "string"},
            "stop": {"type": "boolean"},
            "reset": {"type": "boolean"},
            **more,
        },
        "additionalProperties": False,
    }


def hints(environments: Sequence[Environment]) -> dict[str, bool | str]:
    """Hints for the client's approval dialogue, of what is usable.

    The project on the host is never changed: it is read-only, or a session has a copy. With a
    network code can change what is elsewhere, but only the whole network has what trusts everybody
    who reaches it, such as services on the host's loopback.
    """
    networks = [e.network for e in environments if e.problem is None]
    return {
        "title": TITLE,
        "readOnlyHint": False,
        "destructiveHint": any(network.mode == "full" for network in networks),
        "idempotentHint": False,
        "openWorldHint": any(_network_of(network) for network in networks),
    }


def _text_of(environment: Environment) -> str:
    text = one_line(environment.description or environment.interpreter, _MAX_LINE_CHARS)
    if not environment.keeps_state:
        text = f"{_NO_SESSIONS} {text}"
    text = f"{text}; {environment.timeout_s:g} s"
    if packages := _packages_of(environment):
        text += f"; {packages}"
    network = _network_of(environment.network)
    return f"{text}; network: {network}" if network else text


def _packages_of(environment: Environment) -> str:
    """Modules that are imported already, then packages that somebody asked for, then the best known
    ones of those that are installed.
    """
    named = [module.partition(".")[0] for module in environment.preload]
    named = [name for name in named if environment.has_module(name)]
    named += environment.main_packages
    if environment.interpreter == "python":
        named += [name for name in WELL_KNOWN if name in environment.packages]
    shown = [one_line(name, _MAX_PACKAGE_CHARS) for name in dict.fromkeys(named)]
    return ", ".join(shown[:_MOST_PACKAGES])


def _network_of(network: NetworkRule) -> str:
    """Describe the network; empty for none."""
    match network.mode:
        case "off":
            return ""
        case "full":
            return "everything"
        case "allow":
            shown = [one_line(pattern, _MAX_HOST_CHARS) for pattern in network.allow[:_MOST_HOSTS]]
            if len(network.allow) > _MOST_HOSTS:
                shown.append(f"{len(network.allow) - _MOST_HOSTS} more")
            return ", ".join(shown)


def _network_sentence(usable: Sequence[Environment]) -> str:
    reaching = [e for e in usable if _network_of(e.network)]
    if not reaching:
        return " Network is off."
    return " Otherwise network is off." if len(reaching) < len(usable) else ""


def _entry(name: str, text: str) -> str:
    return f"- {name}: {text}"


def _project_line(project: ProjectMount | None, reason: str) -> str:
    if project is None and reason == ASKED_LATER:
        return f"Project: {ASKED_LATER}."
    if project is None:
        why = one_line(reason, _MAX_LINE_CHARS).rstrip(".")
        return f"No project is mounted: {why or 'none was found'}."
    where = f"Project {one_line(project.path, 200)} is at {project.mount_point}"
    if project.mode == "overlay":
        return f"{where}; changes stay in a copy of the session's own."
    return f"{where}, read-only."
