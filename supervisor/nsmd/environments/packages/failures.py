"""Reasons why a tool such as uv failed, from what it printed, and what to do next. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence

from nsmd.environments.packages.build_jail import JailOutcome

MAX_CAUSE_CHARS = 600

_BUILDS = (
    "A package without a wheel has to be built, which runs its code in the build's jail: "
    "`--allow-builds`, or `allow_builds = true`"
)
_COMPILING = (
    "It needs a compiler, headers or libraries, which jails see only if /usr has them: install "
    "them on this machine, then `nsm env update`."
)
_OTHER_FILES = (
    "The index has other files than those hashes are of. Hashes of your own requirements file are "
    "yours to correct; those of nsm's lock are renewed by `nsm env update`."
)
_CERTIFICATE = "`cert` of pip, SSL_CERT_FILE or npm's `cafile` name the certificates to trust."
_CREDENTIALS = (
    "Your user and password for that index are missing or not accepted; see `nsm env log`, and "
    "your configuration or ~/.netrc."
)
_HINTS: Mapping[str, str] = {
    "`[packages] hosts` in config.toml names": "An index may keep its files on another host: name "
    "that host there, if packages may come from it.",
    "have to be allowed by themselves": "`[packages] hosts` in config.toml may name the host.",
    "The user can name this host": "`[packages] hosts` in config.toml may name it.",
    "UnknownIssuer": _CERTIFICATE,
    "invalid peer certificate": _CERTIFICATE,
    "SELF_SIGNED_CERT": _CERTIFICATE,
    "UNABLE_TO_VERIFY": _CERTIFICATE,
    "UNABLE_TO_GET_ISSUER": _CERTIFICATE,
    "CERTIFICATE_VERIFY_FAILED": _CERTIFICATE,
    "401 Unauthorized": _CREDENTIALS,
    "403 Forbidden": _CREDENTIALS,
    "E401": _CREDENTIALS,
    "E403": _CREDENTIALS,
    "No space left on device": "Free some space, then `nsm env update`.",
    "Disk quota exceeded": "Free some space, then `nsm env update`.",
    "Hash mismatch": _OTHER_FILES,
    "building is disabled": f"{_BUILDS}.",
    "no wheels": f"{_BUILDS}.",
    "no usable wheels": f"{_BUILDS}.",
    "fatal error: ": _COMPILING,
    "cannot find -l": _COMPILING,
    "error: command '": _COMPILING,
    "conflict": "Ask for fewer exact versions.",
    "unsatisfiable": "Check names and versions.",
}
"""Advice by words in the output of uv and of builds, which have no error codes."""

_NO_ANSWER = re.compile(
    r"Failed to fetch|[Rr]equest failed|error sending request|operation timed out"
    r"|code E(?:[A-Z]*TIMEDOUT|[A-Z]*CONN[A-Z]*|AI_AGAIN|NOTFOUND|5\d\d|4(?:01|03|07|29))"
    r"|urlopen error|HTTP Error|HTTP status"
)

_ERROR = re.compile(r"(?:ERROR|[Ee]rror): ?(?P<text>.*)|(?P<raised>[A-Z]\w*Error: .+)")

_BUILT = re.compile(r"(?:Building wheel for |Failed to build `)(?P<package>[\w.-]+)")
_COMPILER = re.compile(
    r"(?:npm (?:ERR!|error) )?"
    r"(?P<said>\S+:\d+(?::\d+)?: (?:fatal )?error: .+|\S*ld: cannot find -l.+)"
)
_UV = re.compile(r"^[ \u00d7╰├─▶│]*(?:(?:error|cause): )?")
_NPM = re.compile(
    r"npm (?:ERR!|error) ?(?P<code>code|[A-Z]{4,}|404|notarget|network)? ?(?P<text>.*)"
)
_NPM_END = (
    *("A complete log", "Log files", "Clean install a project", "Fix the upstream dependency"),
    *("The requested resource", "In most cases", "Note that you can"),
)
"""Beginnings of what npm says after the reason."""
_NPM_REQUEST = re.compile(r" - [A-Z]+ (http\S+).*")
_UV_START = re.compile(r"(?:error:| *\u00d7)")


class InstallError(Exception):
    """An environment cannot be made.

    Args:
        message: a sentence without its final dot.
        hint: what to do next.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(message)


def why_failed(
    ran: JailOutcome, tool: str, problems: Sequence[str], *, done: str
) -> tuple[str, str]:
    """Say why a command failed, and what to do next.

    Args:
        ran: its outcome.
        tool: its name.
        problems: sentences about requests to indexes that failed.
        done: what it should have done with the packages.
    """
    said = _of_compiler(ran.tail) or _READERS[tool](ran.tail)
    cause = said or (ran.tail[-1] if ran.tail else "")
    if not cause:
        ended = f"exit code {ran.status}" if ran.status >= 0 else f"signal {-ran.status}"
        cause = f"{tool} said nothing ({ended})"
    seen = "\n".join((*problems, *ran.tail))
    hint = next((hint for words, hint in _HINTS.items() if words in seen), "")
    # Of a refused connection tools say no more than that the proxy has refused it.
    reason = f" ({problems[-1]})" if problems else ""
    return f"The packages cannot be {done}: {cause[:MAX_CAUSE_CHARS].rstrip('.')}{reason}", hint


def no_answer(ran: JailOutcome) -> bool:
    """Return whether a command may have failed since an index did not answer as it should."""
    return any(_NO_ANSWER.search(line) for line in ran.tail)


def _of_compiler(tail: Sequence[str]) -> str:
    """The first error of a compiler or linker, in front of which tools say a lot of themselves."""
    said = next((match["said"] for line in tail if (match := _COMPILER.match(line.strip()))), "")
    built = next((match["package"] for line in tail if (match := _BUILT.search(line))), "")
    return f"{built} cannot be built: {said}" if built and said else said


def _of_uv(tail: Sequence[str]) -> str:
    """Join uv's explanation, which is drawn as a tree, or has a line for each cause."""
    starts = [number for number, line in enumerate(tail) if _UV_START.match(line)]
    if not starts:
        return ""
    lines = [_UV.sub("", line).strip() for line in tail[starts[-1] :]]
    told = itertools.takewhile(lambda line: not line.startswith("hint:"), filter(None, lines))
    first, *causes = told
    return f"{first.rstrip(':')}: {' '.join(causes)}" if causes else first


def _of_error_lines(tail: Sequence[str]) -> str:
    found = [match for line in tail if (match := _ERROR.match(line.strip()))]
    texts = [(match["raised"] or match["text"]).strip() for match in found]
    return next((text for text in texts if text), "")


def _of_npm(tail: Sequence[str]) -> str:
    """Join npm's explanation: its error lines from the one after the code on."""
    lines = [match for line in tail if (match := _NPM.fullmatch(line.strip())) is not None]
    told = [match["text"].strip() for match in lines if match["code"] != "code" and match["text"]]
    before = itertools.takewhile(lambda text: not text.startswith(_NPM_END), told)
    # What is being resolved is our own `package.json`.
    reasons = (
        _NPM_REQUEST.sub(r" (\1)", text) for text in before if not text.startswith("While resolv")
    )
    return " ".join(dict.fromkeys(reasons))


_READERS: Mapping[str, Callable[[Sequence[str]], str]] = {
    "uv": _of_uv,
    "npm": _of_npm,
    "py-rattler": _of_error_lines,
}
