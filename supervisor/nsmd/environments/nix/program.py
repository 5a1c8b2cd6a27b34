"""Nix on this host: how it is found and run, how a run can fail, and the copies that it gets."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from nsm import git
from nsm.dataclass import dataclass
from nsm.wire.errors import NixFailedError, NixUnavailableError
from nsm.wire.jobs import signal_name
from nsmd.host.commands import CommandOutcome, OnProgress, run_monitored
from nsmd.host.paths import file_stamp, why_not_run

log = logging.getLogger(__name__)


SHOWN_LINES = 12
"""Number of lines of the log that a message has; `data` has more, for programs."""

_HINTS: Mapping[str, str] = {
    "No space left on device": "Free some: `nix-collect-garbage` removes what nothing refers to.",
    "database or disk is full": "Free some: `nix-collect-garbage` removes what nothing refers to.",
    "cannot connect to socket": "Nix's daemon does not answer: `systemctl status nix-daemon`.",
    "daemon-socket/socket": "Nix's daemon does not answer: `systemctl status nix-daemon`.",
    "in the flake registries": (
        "A reference is like `github:OWNER/REPO#NAME` or `path:/DIRECTORY#NAME`."
    ),
    "does not provide attribute": "`nix flake show REF` lists what a flake has.",
    "Could not resolve host": "Nix could not reach the network.",
    "unable to download": "Nix could not reach the network, or the place does not exist.",
    "is read-only": "Nix's store or its state directory cannot be written: see `nsm doctor`.",
    "Read-only file system": "Nix's store cannot be written: see `nsm doctor`.",
}
"""Hints by phrases in Nix's messages, since Nix has no error codes."""


_FULL_LOGS = "For full logs, run"
"""Start of advice by Nix that is left out, since `nsm env log` shows the full log."""

# The wording differs between versions of Nix. These phrases are from 2.8 to 2.31.
_START = "error:"
_CONSEQUENCE = re.compile(
    r"\d+ dependenc(?:y|ies)\b.*\bfailed|due to failed dependenc|^error: build of .* failed",
    re.DOTALL,
)
"""Errors that follow from another error, which Nix has printed before."""

_BUILDER = re.compile(
    r"(?:builder for|[Cc]annot build) '(?:[^']*/)?[0-9a-z]{32}-([^']+?)\.drv'"
    r"(?:.*?\b(?:failed|exit code)\b)",
    re.DOTALL,
)
_IN_LOGS = r"(?i)\b(?:\w*error|\w*exception|fatal)\b.*?:"


class NixRunError(NixFailedError):
    """Failed run of nix.

    Args:
        hint: advice; if empty, it is chosen by Nix's messages.

    Attributes:
        cause: the line of the messages or the log that tells a person what is wrong; may be empty.
    """

    def __init__(
        self, what: str, *, error: str = "", tail: Sequence[str] = (), hint: str = ""
    ) -> None:
        self.error = error
        self.tail = tuple(tail)
        self.cause = cause(error, tail)
        told = [line for line in error.splitlines() if not line.strip().startswith(_FULL_LOGS)]
        if told == [self.cause]:
            told = []
        before = [line for line in tail if line not in error.splitlines()][-SHOWN_LINES:]
        words = [f"{what.rstrip('.')}: {self.cause}" if self.cause else what, *told[-SHOWN_LINES:]]
        if before:
            words += ["The log ends:", *(f"  {line}" for line in before)]
        if not hint:
            seen = "\n".join([error, *tail])
            hint = next((advice for mark, advice in _HINTS.items() if mark in seen), "")
        super().__init__("\n".join(words), hint=hint, data={"error": error, "log": list(self.tail)})


class NixExitError(NixRunError):
    """nix ended with an exit code other than 0."""

    def __init__(self, command: str, exit_code: int, *, error: str, tail: Sequence[str]) -> None:
        what = f"`{command}` failed (exit code {exit_code})."
        super().__init__(what, error=error, tail=tail)


def cause(error: str, tail: Sequence[str]) -> str:
    """Find the last error that does not follow from another one; a builder's error if one failed.

    Args:
        tail: last lines of the log; lines of builders begin with ``NAME> ``.

    Returns:
        One line; empty if Nix names no error.
    """
    blocks = list(_blocks(error))
    real = [block for block in blocks if not _CONSEQUENCE.search("\n".join(block))] or blocks
    if not real:
        return ""
    block = real[-1]
    if builder := _BUILDER.search("\n".join(block)):
        return _of_builder(builder[1], block, tail) or block[0]
    first, *rest = block
    if first.endswith(":"):  # a hash mismatch: the next lines have both hashes
        return " ".join([first, ", ".join(" ".join(line.split()) for line in rest[:2])]).rstrip()
    if rest and rest[0].startswith("Did you mean"):
        return f"{first}. {rest[0]}"
    return first


def _blocks(error: str) -> Iterator[list[str]]:
    """Yield the lines of each error. Newer versions print an empty error first, above the trace."""
    block: list[str] = []
    for line in (line.strip() for line in error.splitlines()):
        if line.startswith(_START):
            if block:
                yield block
            block = [line] if line != _START else []
        elif block and line:
            block.append(line)
    if block:
        yield block


def _of_builder(name: str, block: Sequence[str], tail: Sequence[str]) -> str:
    """Return a builder's last line about an error, else its last line; empty if there is none."""
    said = [line.removeprefix("> ") for line in block if line.startswith("> ")]
    said += [line.removeprefix(f"{name}> ") for line in tail if line.startswith(f"{name}> ")]
    if not said:
        return ""
    line = next((line for line in reversed(said) if re.search(_IN_LOGS, line)), said[-1]).strip()
    return f"error: building {name} failed: {line.removeprefix(_START).strip()}"


MINIMUM_VERSION = (2, 8)
"""The oldest version that was tried: it has flakes, `nix build --json` and
`print-dev-env --json`.
"""

RECOMMENDED_VERSION = (2, 18)
"""The oldest version that nixpkgs' own library supports."""

MAX_OUTPUT_BYTES = 16 * 1024 * 1024
"""Largest standard output of Nix: paths and JSON, without the output of builders."""

PROBE_TIMEOUT_S = 10.0
"""`nix --version` takes 20 ms; more than this is a file system that hangs."""

USUAL_PLACES = (
    "~/.nix-profile/bin",
    "~/.local/state/nix/profile/bin",
    "/nix/var/nix/profiles/default/bin",
    "/run/current-system/sw/bin",
)
"""Searched after PATH: Nix's installers add these to PATH in login shells only."""

GET_IT = (
    "Install it (https://nixos.org/download, or your distribution's package `nix` or `nix-bin`); "
    "nsm finds it without a restart."
)

_PASSED_ON = frozenset(
    (
        "ALL_PROXY",
        "CURL_CA_BUNDLE",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "HOME",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "LANG",
        "LD_LIBRARY_PATH",
        "LOCALE_ARCHIVE",
        "LOGNAME",
        "NO_PROXY",
        "SSH_AUTH_SOCK",
        "TMPDIR",
        "TZ",
        "USER",
        "all_proxy",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    )
)
_PASSED_ON_PREFIXES = ("LC_", "NIX_", "SSL_CERT_", "XDG_")
_OURS_PREFIX = "NIX_SANDBOX_"

_NEVER_ASK = {"GIT_TERMINAL_PROMPT": "0", "SSH_ASKPASS_REQUIRE": "never"}
"""Nobody is there to answer."""

LOG_READER = "nsmd.environments.nix.messages:NixLogReader"

_PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
"""`git` and `hg`, as far as Nix may run them: a flake can name any repository of this machine as an
input, and what its configuration names would run here."""

_FLAKES = ("--extra-experimental-features", "nix-command flakes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nix:
    """A Nix with a known version, at an absolute path."""

    program: str
    version: tuple[int, int]
    version_text: str
    variables: Mapping[str, str]

    async def run(
        self,
        arguments: Sequence[str],
        *,
        timeout_s: float,
        on_progress: OnProgress | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        log_fd: int | None = None,
        directory: str = "/",
        tree: str = "",
    ) -> bytes:
        """Run a Nix command, with flakes enabled; returns its standard output.

        Args:
            arguments: the command, options, and after ``--`` the user's text; never through a
                shell.
            timeout_s: time after which it is stopped.
            on_progress: called a few times a second at most; must not block.
            log_fd: an open, empty file for its log (4 MiB of its beginning, and the end); the
                caller closes it.
            tree: a repository that nsm made; Nix's git is kept from all others of this machine.

        Raises:
            NixRunError: it failed; the message says why, with the end of its log.

        Cancellation: stops Nix, and returns when it and all that it started are gone.
        """
        ended = await run_monitored(
            [self.program, *_FLAKES, "--log-format", "internal-json", *arguments],
            reader=LOG_READER,
            variables={
                **self.variables,
                "PATH": f"{_PROGRAMS}:{self.variables['PATH']}",
                "NSM_FLAKE_COPY": tree,
            },
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            on_progress=on_progress,
            log_fd=log_fd,
            directory=directory,
        )
        return self._result(ended, _short(arguments), timeout_s, max_output_bytes)

    def _result(self, ended: CommandOutcome, command: str, timeout_s: float, limit: int) -> bytes:
        if ended.not_started:
            raise NixRunError(f"`{command}` did not run: {ended.not_started}.")
        if ended.timed_out:
            raise NixRunError(
                f"`{command}` was stopped after {timeout_s:g} s.",
                tail=[line for line in ended.tail if line not in ended.error.splitlines()],
                hint="Finished parts are kept, so another try continues from there.",
            )
        if ended.overflowed:
            what = f"`{command}` printed more than {limit} bytes on its standard output."
            raise NixRunError(what, error=ended.error, tail=ended.tail)
        if ended.signal is not None:
            raise NixRunError(
                f"`{command}` was ended by {signal_name(ended.signal)}, which nsm did not send.",
                error=ended.error,
                tail=ended.tail,
                hint="Try again; if the kernel ended it because memory ran out, `dmesg` says so.",
            )
        if ended.exit_code:
            raise NixExitError(command, ended.exit_code, error=ended.error, tail=ended.tail)
        return ended.stdout


class NixFinder:
    """Finder of Nix, when it is needed, and again when it has changed or was missing."""

    def __init__(self, search_path: str, variables: Mapping[str, str], home: str) -> None:
        self._search_path = search_path
        self._variables = variables
        self._home = home
        self._found: tuple[tuple[int, ...], Nix] | None = None

    async def find(self) -> Nix:
        """Find the present Nix.

        Raises:
            NixUnavailableError: there is none that works.
        """
        found = await trio.to_thread.run_sync(self._find)
        if isinstance(found, Nix):
            return found
        raise found

    def _find(self) -> Nix | NixUnavailableError:
        if self._found is not None and file_stamp(self._found[1].program) == self._found[0]:
            return self._found[1]
        found = find_nix(self._search_path, self._variables, self._home)
        self._found = (file_stamp(found.program), found) if isinstance(found, Nix) else None
        return found


def find_nix(
    search_path: str, variables: Mapping[str, str], home: str
) -> Nix | NixUnavailableError:
    """Search for a Nix that works; blocks for some 30 ms, so call it in a thread.

    Args:
        variables: the supervisor's own environment; Nix gets what it needs of it.

    Returns:
        The first one that works, or the error with what was found and how to get one.
    """
    passed_on = nix_variables(variables, search_path, home)
    refused: list[str] = []
    for program in _candidates(search_path, home):
        found = _probe(program, passed_on)
        if isinstance(found, Nix):
            return found
        log.warning("%s", found)
        refused.append(found)
    why = "; ".join(refused) or "there is none on PATH, nor in its usual places"
    return NixUnavailableError(f"This needs Nix: {why}.", hint=GET_IT, data={"refused": refused})


def why_no_store(nix: Nix) -> str | None:
    """Return why nix cannot use its store, in its words; None if it can. Blocks, for some 30 ms."""
    try:
        done = subprocess.run(
            [nix.program, *_FLAKES, "store", "ping"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(nix.variables),
            cwd="/",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1][:300]


def nix_variables(variables: Mapping[str, str], search_path: str, home: str) -> dict[str, str]:
    """Make the environment of Nix: only what it needs of the supervisor's own."""
    passed_on = {
        name: value
        for name, value in variables.items()
        if name in _PASSED_ON
        or (name.startswith(_PASSED_ON_PREFIXES) and not name.startswith(_OURS_PREFIX))
    }
    folders = [*search_path.split(os.pathsep), *(_places(home))]
    path = os.pathsep.join(dict.fromkeys(f for f in folders if os.path.isabs(f)))
    return {**passed_on, "PATH": path, "HOME": home, **_NEVER_ASK}


def _places(home: str) -> list[str]:
    return [place.replace("~", home, 1) for place in USUAL_PLACES]


def _candidates(search_path: str, home: str) -> Iterator[str]:
    """Executables called nix, each file once."""
    seen: set[str] = set()
    for folder in (*search_path.split(os.pathsep), *_places(home)):
        path = os.path.join(folder, "nix")
        real = os.path.realpath(path)
        if os.path.isabs(path) and real not in seen and os.path.isfile(real):
            seen.add(real)
            if os.access(real, os.X_OK):
                yield path


def _probe(program: str, variables: Mapping[str, str]) -> Nix | str:
    """Ask a Nix for its version. Returns it, or a clause that says why it cannot be used."""
    if reason := why_not_run(program):
        return f"{program} is not run: {reason}"
    for name in ("hg", "git"):  # it would run the real ones
        if shutil.which(name, path=_PROGRAMS) is None:
            return f"{program} is not run: nsm's {_PROGRAMS}/{name} cannot be executed"
    try:
        answer = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(variables),
            cwd="/",
            timeout=PROBE_TIMEOUT_S,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"{program} --version does not work: {error}"
    # `nix (Nix) 2.18.1`, `nix (Lix, like Nix) 2.91.0`, `nix (Determinate Nix 3.5.2) 2.28.3`
    numbers = re.search(r"(\d+)\.(\d+)\S*$", answer)
    if numbers is None:
        return f"{program} --version says {answer!r:.100}"
    version = (int(numbers[1]), int(numbers[2]))
    if version < MINIMUM_VERSION:
        needed = ".".join(map(str, MINIMUM_VERSION))
        return f"{program} is version {numbers[0]}, {needed} or newer is needed"
    return Nix(program=program, version=version, version_text=numbers[0], variables=variables)


def _short(arguments: Sequence[str]) -> str:
    """Shorten a command for messages: `nix build`, `nix flake metadata`."""
    words = itertools.takewhile(lambda argument: not argument.startswith("-"), arguments)
    return " ".join(["nix", *words])


@asynccontextmanager
async def flake_copy(
    project: str, tree: str, variables: Mapping[str, str]
) -> AsyncGenerator[tuple[str, str]]:
    """Give the directory in which Nix is to run, and the reference to the flake from there.

    Nix asks git which files belong to a flake, and git would run what the repository's
    configuration names, which code in a session or a box may have written. So Nix gets a copy of
    the files that git tracks. Without a repository it has no use for git, and is kept from looking
    for one.

    Args:
        tree: directory for the copy; of no other user of this function. It is gone afterwards.

    Raises:
        NixFailedError: git cannot tell which files these are.
        OSError: the copy cannot be made.
    """
    remove = partial(shutil.rmtree, tree, ignore_errors=True)
    await trio.to_thread.run_sync(remove)  # of a supervisor that was killed
    os.makedirs(tree, mode=0o700)
    try:
        place = await trio.to_thread.run_sync(_copy, project, tree, variables)
        # A flake below the top may use files above it, which `path:` does not show to it.
        yield place or project, "path:." if place in (None, tree) else "."
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(remove)


def _copy(project: str, tree: str, variables: Mapping[str, str]) -> str | None:
    try:
        place = git.copy_tracked(project, tree, variables)
    except git.GitError as error:
        raise NixFailedError(
            f"The files of {project} are not known: {error}.",
            hint="Repair the repository: `git status` shows it.",
        ) from error
    if place == tree:
        shutil.rmtree(os.path.join(tree, ".git"))
    return place
