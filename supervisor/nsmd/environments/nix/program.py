"""Nix on this host, and the one way to run it."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence

import trio

from nsm.dataclass import dataclass
from nsm.wire.errors import NixUnavailableError
from nsmd.environments.commands.runner import CommandOutcome, OnProgress, run_monitored
from nsmd.environments.nix.errors import (
    NixExitError,
    NixKilledError,
    NixNotStartedError,
    NixOutputError,
    NixTimeoutError,
)
from nsmd.host.paths import why_not_run

log = logging.getLogger(__name__)

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
    """A Nix with a known version.

    Attributes:
        program: absolute path.
        version: major and minor number.
        version_text: version in its own words.
        variables: its whole environment.
    """

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
        """Run a Nix command, with flakes enabled.

        Args:
            arguments: the command, options, and after ``--`` the user's text; never through a
                shell.
            timeout_s: seconds, then it is stopped.
            on_progress: called a few times a second at most; must not block.
            max_output_bytes: largest standard output.
            log_fd: an open, empty file for its log (4 MiB of its beginning, and the end); the
                caller closes it.
            directory: its working directory.
            tree: a repository that nsm made; Nix's git is kept from all others of this machine.

        Returns:
            Its standard output.

        Raises:
            NixRunError: it failed; the subclasses say why, with the end of its log.

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
            raise NixNotStartedError(command, ended.not_started)
        if ended.timed_out:
            raise NixTimeoutError(command, timeout_s, error=ended.error, tail=ended.tail)
        if ended.overflowed:
            raise NixOutputError(command, limit, error=ended.error, tail=ended.tail)
        if ended.signal is not None:
            raise NixKilledError(command, ended.signal, error=ended.error, tail=ended.tail)
        if ended.exit_code:
            raise NixExitError(command, ended.exit_code, error=ended.error, tail=ended.tail)
        return ended.stdout


class NixFinder:
    """Finds Nix when it is needed, and again when it has changed or was missing.

    Args:
        search_path, variables, home: as for `find_nix`.
    """

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
        if self._found is not None and _stamp(self._found[1].program) == self._found[0]:
            return self._found[1]
        found = find_nix(self._search_path, self._variables, self._home)
        self._found = (_stamp(found.program), found) if isinstance(found, Nix) else None
        return found


def _stamp(program: str) -> tuple[int, ...]:
    """Identity of a program, which changes when the program is replaced; empty if there is none."""
    try:
        found = os.stat(program)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def find_nix(
    search_path: str, variables: Mapping[str, str], home: str
) -> Nix | NixUnavailableError:
    """Search for a Nix that works; blocks for some 30 ms, so call it in a thread.

    Args:
        search_path: value of PATH; the usual places come after it.
        variables: the supervisor's own environment; Nix gets what it needs of it.
        home: HOME of the user.

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
    """Why nix cannot use its store, in its words; None if it can. Blocks, for some 30 ms."""
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
