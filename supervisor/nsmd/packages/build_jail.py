"""The jail of a build, in which uv, npm or py-rattler runs, with no way out but nsm's proxy; and
reasons why these failed, from what they printed.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import socket
import subprocess
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack

import trio

from nsm.dataclass import dataclass, field, replace
from nsm.jail.seccomp import filter_program
from nsmd.fdstore.holder import receive_one
from nsmd.host.command_monitor import lines_of
from nsmd.jail.arguments import (
    SYNTHETIC_FILES,
    BindMount,
    FileData,
    JailContent,
    build_arguments,
    python_command,
)
from nsmd.jail.host import BASE_PATH, scan_host
from nsmd.jail.process import end_starter
from nsmd.jail.starting import memory_file, spawn
from nsmd.jail.user import JailUser
from nsmd.model.values import ImageRoot, Links
from nsmd.packages import jail_start
from nsmd.packages.store import BUILD

ENV = "/env"
"""Place of an environment, in the jail of its build as in sessions."""

PYTHON = f"{ENV}/bin/python"

PLACE = "/run/nsm/tool"
"""Directory in the jail of what installs packages."""

STARTER = "/run/nsm/start.py"

TAIL_LINES = 200
"""Lines that are kept: npm explains its options after its error."""

_CHUNK_BYTES = 4 * 1024
"""Largest piece to read at once: the supervisor's calls wait while its lines are cleaned."""

_MAX_LINE_BYTES = 64 * 1024

_URL = r"(https?://[^\s?]+)(\?[^\s)]+)?"
"""URL, and its query, which may be a signature that opens a file to everybody. It matches without a
query, too: else a line of many such beginnings would be searched from each of them to its end.
"""

Serve = Callable[[int], Awaitable[None]]
"""Serves connections of a listening socket of the jail, which it owns, until it is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JailOutcome:
    """Outcome of a command in a jail: its exit code, or the negative number of the signal that
    ended it, and the last lines of what it printed.
    """

    status: int
    tail: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJail:
    """The jail of a build: each command runs in a new one with the same directories.

    Attributes:
        python: Python that starts commands in the jail.
        directory: host directory that is `BUILD`; the only one that commands may change.
        environment: directory below it that is `ENV`.
        shown: host directories and files that the jail shows, and where.
        files: texts of files that only the jail has, by path.
        hidden: texts that no line shows, such as passwords.
        say: gets what commands print, some lines at a time.
        takes: gets each line first, and returns whether nobody else is to have it.
        image, links: its root directory and links in it; commands may then change nothing. None for
            the host's.
    """

    bwrap: str
    user: JailUser
    python: str
    directory: str
    environment: str
    shown: Sequence[tuple[str, str]] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    files: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    hidden: Sequence[str] = field(default=(), repr=False)
    say: Callable[[str], None]
    takes: Callable[[str], bool] = field(default=lambda _line: False, repr=False)
    image: ImageRoot | None = None
    links: Links = ()

    def alone(self, place: str) -> BuildJail:
        """Return the same jail with no more of the build than its own directory."""
        variables = {**self.variables, "TMPDIR": os.path.join(BUILD, "tmp")}
        return replace(self, directory=place, variables=variables)

    async def run(self, command: Sequence[str], *, serve: Serve | None = None) -> JailOutcome:
        """Run a command to its end; cancellation kills it. `serve` serves its connections to hosts;
        None for no way out.
        """
        # In a thread: it may have to visit all directories of the build.
        writable = None if self.image is not None else await trio.to_thread.run_sync(self._own)
        with ExitStack() as owned:
            output, written = os.pipe2(os.O_CLOEXEC)
            owned.callback(os.close, output)
            os.set_blocking(output, False)
            ours: socket.socket | None = None
            with ExitStack() as theirs:
                theirs.callback(os.close, written)
                channel = -1
                if serve is not None:
                    ours, its = socket.socketpair()
                    owned.enter_context(ours).setblocking(False)
                    channel = theirs.enter_context(its).fileno()
                process = self._start(command, writable, channel, written, theirs)
            reader = CommandOutput(output, self)
            try:
                owned.callback(os.close, ended := os.pidfd_open(process.pid))
                async with trio.open_nursery() as nursery:
                    if serve is not None and ours is not None:
                        nursery.start_soon(_serve, ours, serve)
                    await reader.to_its_end()
                    nursery.cancel_scope.cancel()
                await trio.lowlevel.wait_readable(ended)
                status = process.wait()
            finally:
                await end_starter(process)  # its jail ends with it
        return JailOutcome(status=status, tail=tuple(reader.tail))

    def _start(
        self,
        command: Sequence[str],
        writable: str | None,
        channel: int,
        output: int,
        theirs: ExitStack,
    ) -> subprocess.Popen[bytes]:
        with open(jail_start.__file__, "rb") as file:
            starter = file.read()
        usual = SYNTHETIC_FILES if self.image is None else ()
        texts = {**dict(usual), **self.files}
        contents = {STARTER: starter, **{path: text.encode() for path, text in texts.items()}}
        files = [
            FileData(descriptor=memory_file(content, theirs), target=path)
            for path, content in contents.items()
        ]
        system_calls = filter_program(platform.machine())
        filter_fd = None if system_calls is None else memory_file(system_calls, theirs)
        image = self.image
        inside = os.path.relpath(self.environment, self.directory)
        arguments = build_arguments(
            JailContent(
                host=scan_host(),
                mounts=[
                    BindMount(source=self._way_to(source), target=target)
                    for source, target in self.shown
                ],
                files=files,
                path=":".join(BASE_PATH),
                filter_fd=filter_fd,
                variables=tuple(self.variables.items()),
                # No second bind: hard links from the cache to it work only within one mount.
                links=((ENV, f"{BUILD}/{inside}"),) if image is None else self.links,
                image=image is not None,
            ),
            writable=() if writable is None else [(writable, BUILD)],
        )
        arguments_fd = memory_file(b"".join(os.fsencode(a) + b"\0" for a in arguments), theirs)
        words = [self.bwrap, "--args", str(arguments_fd), "--"]
        words += python_command(self.python, image)
        words += ["-I", "-S", STARTER, str(channel), *command]
        return spawn(
            self.user,
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            inherited=[
                arguments_fd,
                *(() if channel < 0 else (channel,)),
                *(() if filter_fd is None else (filter_fd,)),
                *(each.descriptor for each in files),
            ],
        )

    def _way_to(self, path: str) -> str:
        """Path by which the jails' user reaches a directory or file."""
        if os.path.isdir(path):
            return self.user.way_to(path)
        folder, name = os.path.split(path)
        return os.path.join(self.user.way_to(folder), name)

    def _own(self) -> str:
        """Path by which the files of the build belong to the jails' user, who changes them.

        On the disk they are ours, so that root's environments are root's. Where the kernel cannot
        translate owners, they are that user's.
        """
        try:
            return self.user.way_to_own(self.directory)
        except OSError:
            for folder, _, _ in os.walk(self.directory):
                self.user.give(folder)
            return self.user.way_to(self.directory)


class CommandOutput:
    """Output of a command: it is passed on, and its last lines are kept."""

    def __init__(self, descriptor: int, jail: BuildJail) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._descriptor = descriptor
        self._jail = jail

    async def to_its_end(self) -> None:
        rest = b""
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                data = os.read(self._descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                continue
            began_s = time.perf_counter()
            lines, _, rest = (rest + data).rpartition(b"\n")
            self._take(lines)
            if len(rest) > _MAX_LINE_BYTES or not data:
                self._take(rest)
                rest = b""
            if not data:
                return
            # Half of the time belongs to calls: code of packages may print short lines without end.
            await trio.sleep(time.perf_counter() - began_s)

    def _take(self, said: bytes) -> None:
        text = without_secrets(said.decode(errors="replace"), self._jail.hidden)
        if lines := [line for line in lines_of(text) if not self._jail.takes(line)]:
            self.tail.extend(lines)
            self._jail.say("\n".join(lines))


def without_secrets(text: str, hidden: Sequence[str]) -> str:
    """Cover what is `hidden`, and queries of URLs."""
    text = re.sub(_URL, lambda url: f"{url[1]}?****" if url[2] else url[0], text)
    for secret in hidden:
        text = text.replace(secret, "****")
    return text


async def _serve(channel: socket.socket, serve: Serve) -> None:
    """Take the listening socket that the jail passes out, and serve it."""
    await trio.lowlevel.wait_readable(channel)
    _, descriptor = receive_one(channel, 1)
    if descriptor is not None:
        await serve(descriptor)


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

_NO_ANSWER = (
    r"Failed to fetch|[Rr]equest failed|error sending request|operation timed out"
    r"|code E(?:[A-Z]*TIMEDOUT|[A-Z]*CONN[A-Z]*|AI_AGAIN|NOTFOUND|5\d\d|4(?:01|03|07|29))"
    r"|urlopen error|HTTP Error|HTTP status"
)

_ERROR = r"(?:ERROR|[Ee]rror): ?(?P<text>.*)|(?P<raised>[A-Z]\w*Error: .+)"

_BUILT = r"(?:Building wheel for |Failed to build `)(?P<package>[\w.-]+)"
_COMPILER = (
    r"(?:npm (?:ERR!|error) )?"
    r"(?P<said>\S+:\d+(?::\d+)?: (?:fatal )?error: .+|\S*ld: cannot find -l.+)"
)
_UV_FILE = rf" in `{BUILD}/[^`]*` at position \d+"
"""End of a message of uv about the file in the jail that has the requirements."""

_UV = r"^[ \u00d7╰├─▶│]*(?:(?:error|cause): )?"
_NPM = r"npm (?:ERR!|error) ?(?P<code>code|[A-Z]{4,}|\d{3}|notarget|network)? ?(?P<text>.*)"
_NPM_END = (
    *("A complete log", "Log files", "Clean install a project", "Fix the upstream dependency"),
    *("The requested resource", "In most cases", "Note that you can"),
)
"""Beginnings of what npm says after the reason."""
_NPM_REQUEST = r" - [A-Z]+ (http\S+).*"
_UV_START = r"(?:error:| *\u00d7)"


def why_failed(
    ran: JailOutcome, tool: str, problems: Sequence[str], *, done: str
) -> tuple[str, str]:
    """Say why a command of a tool failed, and what to do next.

    Args:
        problems: sentences about connections that were not made.
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
    return any(re.search(_NO_ANSWER, line) for line in ran.tail)


def _of_compiler(tail: Sequence[str]) -> str:
    """The first error of a compiler or linker, in front of which tools say a lot of themselves."""
    said = next(
        (match["said"] for line in tail if (match := re.match(_COMPILER, line.strip()))), ""
    )
    built = next((match["package"] for line in tail if (match := re.search(_BUILT, line))), "")
    return f"{built} cannot be built: {said}" if built and said else said


def _of_uv(tail: Sequence[str]) -> str:
    """Join uv's explanation, which is drawn as a tree, or has a line for each cause."""
    starts = [number for number, line in enumerate(tail) if re.match(_UV_START, line)]
    if not starts:
        return ""
    lines = [re.sub(_UV, "", re.sub(_UV_FILE, "", line)).strip() for line in tail[starts[-1] :]]
    told = itertools.takewhile(lambda line: not line.startswith("hint:"), filter(None, lines))
    first, *causes = told
    return f"{first.rstrip(':')}: {' '.join(causes)}" if causes else first


def _of_error_lines(tail: Sequence[str]) -> str:
    found = [match for line in tail if (match := re.match(_ERROR, line.strip()))]
    texts = [(match["raised"] or match["text"]).strip() for match in found]
    return next((text for text in texts if text), "")


def _of_npm(tail: Sequence[str]) -> str:
    """Join npm's explanation: its error lines from the one after the code on."""
    lines = [match for line in tail if (match := re.fullmatch(_NPM, line.strip())) is not None]
    told = [match["text"].strip() for match in lines if match["code"] != "code" and match["text"]]
    before = itertools.takewhile(lambda text: not text.startswith(_NPM_END), told)
    # What is being resolved is our own `package.json`.
    reasons = (
        re.sub(_NPM_REQUEST, r" (\1)", text)
        for text in before
        if not text.startswith("While resolv")
    )
    return " ".join(dict.fromkeys(reasons))


_READERS: Mapping[str, Callable[[Sequence[str]], str]] = {
    "uv": _of_uv,
    "npm": _of_npm,
    "py-rattler": _of_error_lines,
}
