"""The installer's way from a reference to an image to an environment.

Images of registries are fetched by skopeo, which knows the user's registries and logins. Nothing of
an image is read here: a program in a jail unpacks it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence

import trio

from nsm.dataclass import dataclass, replace
from nsm.wire.decode import DecodeError, decode
from nsmd.host.commands import CommandOutcome, run_monitored
from nsmd.host.package_manager import install_command
from nsmd.jail import BwrapLauncher
from nsmd.jail.arguments import SYNTHETIC_FILES
from nsmd.jail.bubblewrap import missing_bwrap
from nsmd.jail.interpreters import (
    MINIMUM_BASH,
    MINIMUM_NODE,
    MINIMUM_PYTHON,
    FoundInterpreter,
    find_python,
)
from nsmd.model.packages import ImageReference, parse_image
from nsmd.model.values import Interpreter
from nsmd.packages import images, locks
from nsmd.packages.build_jail import BuildJail
from nsmd.packages.images.image_root import ROOT, shown_image, variables_of
from nsmd.packages.package_builds import (
    BuildReport,
    Installed,
    InstallError,
    InstallRequest,
    entered,
    in_thread,
)
from nsmd.packages.sharing import share_image
from nsmd.packages.store import (
    EnvironmentDetails,
    EnvironmentStore,
    ImageFacts,
    Staging,
    hash_of,
    make_directory,
    read_left,
)

MAX_MANIFEST_BYTES = 4 * 1024 * 1024

_LIMITED = 'ulimit -f "$0" && exec "$@"'
_LOG_READER = "nsmd.host.command_monitor:LogReader"

_FATAL = re.compile(r'level=fatal msg="(?P<text>(?:[^"\\]|\\.)*)"')


class Registry:
    """Registries that a user's skopeo reaches."""

    def __init__(self, request: InstallRequest, place: str, say: Callable[[str], None]) -> None:
        program = shutil.which("skopeo", path=request.search_path)
        if program is None:
            raise InstallError(
                "There is no skopeo, which fetches images of registries",
                f"Install it: {install_command('skopeo')}",
            )
        self._program = program
        self._variables = request.variables
        self._place = place
        self._say = say

    async def digest(self, reference: ImageReference) -> str:
        """Ask a registry for the digest of what a reference means now."""
        if reference.digest:
            return reference.digest
        name = f"docker://{reference.place}" + (f":{reference.tag}" if reference.tag else "")
        self._say(f"asking for {name}")
        # The registry's own word is not needed: a digest is the hash of these bytes.
        manifest = await self._run("inspect", "--raw", name)
        return f"sha256:{hashlib.sha256(manifest).hexdigest()}"

    async def fetch(self, reference: ImageReference, digest: str) -> str:
        """Fetch an image; return the path of the layout with it."""
        layout = os.path.join(self._place, "fetched")
        name = reference.pinned(digest)
        self._say(f"fetching {name}")
        await self._run("copy", "--quiet", name, f"oci:{layout}:image")
        return layout

    async def _run(self, *words: str) -> bytes:
        ran = await run_monitored(
            # The one bound that holds for skopeo, too: the size of each file, in such blocks.
            ["/bin/sh", "-c", _LIMITED, str(MAX_BYTES // 512), self._program, *words],
            reader=_LOG_READER,
            variables=self._variables,
            timeout_s=math.inf,
            max_output_bytes=MAX_MANIFEST_BYTES,
        )
        self._say("\n".join(ran.tail))
        if ran.exit_code == 0 and not ran.overflowed:
            return ran.stdout
        raise InstallError(
            f"skopeo cannot fetch it: {_cause(ran)}",
            "Check the image's name, and `skopeo login` if it is private.",
        )


def _cause(ran: CommandOutcome) -> str:
    if ran.overflowed:
        return f"its manifest has more than {MAX_MANIFEST_BYTES} bytes"
    for line in ran.tail:
        if (found := _FATAL.search(line)) is not None:
            return found["text"].replace('\\"', '"').rstrip(".")[:600]
    if ran.not_started or ran.tail:
        return (ran.not_started or ran.tail[-1])[:600].rstrip(".")
    return f"it ended with {ran.exit_code if ran.exit_code is not None else f'signal {ran.signal}'}"


MAX_FILES = 1_000_000
MAX_BYTES = 32 << 30
"""Bounds of one image: more than the largest images of benchmarks, less than most disks."""

MAX_ANSWER_BYTES = 8 * 1024 * 1024

ASK_TIMEOUT_S = 60.0
"""Time for an interpreter to say its version: 50 ms, more on a busy machine."""

LIBRARY = "/run/nsm/lib"
"""Place of the program that unpacks, in its jail."""

IMAGE = "/run/nsm/image"
"""Place of a layout or an archive of the host there."""

_START = f"""\
import sys
sys.path.insert(0, {LIBRARY!r})
from nsmd.packages.images.unpack import main
main()
"""

_LEFT_OUT = ("ld.so.preload",)
"""Files of /etc that are not for the host's loader, which starts the agent."""

_EMPTY: Mapping[str, str] = {"resolv.conf": ""}
"""Files of /etc over which others are mounted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Way to ask an interpreter of an image for its version."""

    programs: tuple[str, ...]
    arguments: tuple[str, ...]
    oldest: tuple[int, ...]
    title: str


_TELL_VERSION = """
import sys, ast, ctypes, json, mmap, resource, select, signal, socket, traceback
print("version %d.%d.%d" % sys.version_info[:3])
"""
_QUESTIONS: Mapping[Interpreter, _Question] = {
    "python": _Question(
        programs=("python3", "python"),
        arguments=(
            *("-I", "-S", "-c"),
            # With the modules that the agent's part in an interpreter needs.
            _TELL_VERSION,
        ),
        oldest=MINIMUM_PYTHON,
        title="Python",
    ),
    "bash": _Question(
        programs=("bash",),
        arguments=("--norc", "--noprofile", "-c", 'echo "version $BASH_VERSION"'),
        oldest=MINIMUM_BASH,
        title="Bash",
    ),
    "node": _Question(
        programs=("node", "nodejs"),
        arguments=("-e", "console.log('version ' + process.versions.node)"),
        oldest=MINIMUM_NODE,
        title="Node.js",
    ),
}

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Gives nothing back: programs of images print what they like.
VERSION = re.compile(r"version (?P<text>(?P<numbers>[0-9]++(?:\.[0-9]++)*+)\S*+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unpacked:
    """Answer of the program in the jail; not to be trusted."""

    digest: str
    files: int = 0
    bytes: int = 0
    left_out: int = 0
    variables: dict[str, str]
    path: str = ""
    working_directory: str = ""
    layers: tuple[str, ...] = ()
    programs: dict[str, str]


class ImageInstaller:
    """Maker of one environment from an image."""

    def __init__(
        self, request: InstallRequest, launcher: BwrapLauncher, report: BuildReport
    ) -> None:
        self._request = request
        self._launcher = launcher
        self._report = report
        self._store = EnvironmentStore(request.store)
        # Modules to preload are Python's.
        self._language = request.wanted.language or ("python" if request.wanted.preload else "")
        try:
            self._reference = parse_image(request.wanted.image)
        except ValueError as error:
            raise InstallError(f"{request.wanted.image!r} {error}") from error

    async def make(self) -> Installed:
        """Make the environment, unless it is there.

        Raises:
            InstallError, OSError: it cannot be made.
        """
        self._python = await in_thread(self._find_python)
        pinned, lock = await in_thread(self._pinned)
        if pinned and (path := await in_thread(self._there, pinned)):
            return Installed(path=path, lock=lock)
        await in_thread(self._check_place)
        with self._launcher.user.with_temporary_binds() as self._user:
            async with entered(self._store.building(alone=True)) as staging:
                path, digest = await self._build(staging, pinned)
        lock, note = await in_thread(self._keep_pin, digest)
        return Installed(path=path, lock=lock, note=note)

    def _find_python(self) -> FoundInterpreter:
        found = find_python(
            None,
            self._request.search_path,
            home=self._request.home,
            unreadable=self._launcher.user.why_unreadable,
        )
        if isinstance(found, str):
            raise InstallError(
                f"There is no Python for the agent: {found}", "`nsm doctor` says what nsm needs."
            )
        return found

    def _check_place(self) -> None:
        """Check that there is a file or a directory, if the image is to be in one."""
        reference = self._reference
        if reference.transport != "docker" and not os.path.exists(reference.place):
            raise InstallError(
                f"There is no image at {reference.place}", "`nsm env add` takes another path."
            )

    def _path(self, digest: str) -> str:
        """Path of the environment of an image."""
        return self._store.path(
            hash_of("image", digest, self._language, self._python.program, os.uname().machine)
        )

    def _there(self, digest: str) -> str:
        """The same; empty if there is none yet."""
        path = self._path(digest)
        return path if self._store.claim(path) else ""

    async def _build(self, staging: Staging, pinned: str) -> tuple[str, str]:
        """Build the environment of an image; return its path, and the image's digest."""
        reference = self._reference
        source, tag, digest = IMAGE, reference.tag, pinned
        shown = [(reference.place, IMAGE)]
        if reference.transport == "docker":
            self._report.enter("fetching")
            registry = Registry(self._request, staging.place, self._report.say)
            digest = pinned or await registry.digest(reference)
            if path := await in_thread(self._there, digest):
                return path, digest
            fetched = await registry.fetch(reference, digest)
            source, tag = f"{staging.work}/{os.path.basename(fetched)}", "image"
            shown = []
        self._report.enter("unpacking")
        expected = "" if reference.transport == "docker" else pinned
        unpacked = await self._unpack(staging, source, shown, tag, expected)
        digest = digest or unpacked.digest
        if path := await in_thread(self._there, digest):
            return path, digest
        self._report.enter("checking")
        details = await self._look(staging.environment, unpacked)
        if unpacked.left_out:
            self._report.say(f"left out {unpacked.left_out} devices and pipes")
        self._report.enter("publishing")
        await in_thread(share_image, self._store, staging.environment, details)
        await in_thread(staging.complete, details)
        # Not left to its end: its files would be removed meanwhile.
        name = os.path.basename(self._path(digest))
        return await trio.to_thread.run_sync(self._store.publish, staging, name), digest

    async def _unpack(
        self,
        staging: Staging,
        source: str,
        shown: Sequence[tuple[str, str]],
        tag: str,
        expected: str,
    ) -> _Unpacked:
        """Unpack an image in a jail without network.

        Args:
            expected: digest that it must have; empty for any.
        """
        await in_thread(make_directory, os.path.join(staging.environment, ROOT))
        files = {path.removeprefix("/etc/"): text for path, text in SYNTHETIC_FILES}
        asked = {
            "image": source,
            "tag": tag,
            "is_layout": self._reference.transport == "oci-archive",
            "root": f"{staging.work}/env/{ROOT}",
            "answer": f"{staging.work}/answer.json",
            "digest": expected,
            "files": {**_EMPTY, **files},
            "left_out": _LEFT_OUT,
            "programs": [name for each in _QUESTIONS.values() for name in each.programs],
            "max_files": MAX_FILES,
            "max_bytes": MAX_BYTES,
        }
        folder = os.path.dirname(images.__file__)
        jail = BuildJail(
            bwrap=self._bwrap(),
            user=self._user,
            python=self._python.program,
            directory=staging.mount,
            environment=staging.environment,
            shown=(
                *((each, each) for each in self._python.prefixes),
                (folder, f"{LIBRARY}/nsmd/packages/images"),
                *shown,
            ),
            variables={"TMPDIR": f"{staging.work}/tmp"},  # noqa: S108  # not a directory
            say=self._report.say,
        )
        ran = await jail.run([self._python.program, "-I", "-S", "-c", _START, json.dumps(asked)])
        await in_thread(staging.check, ROOT)
        try:
            return await in_thread(_read_answer, f"{staging.place}/answer.json")
        except (OSError, ValueError, TypeError, RecursionError, DecodeError) as error:
            last = ran.tail[-1] if ran.tail else f"exit code {ran.status}"
            said = f"The image cannot be unpacked: {last[:300]}"
            raise InstallError(said, _hint(said)) from error

    async def _look(self, made: str, unpacked: _Unpacked) -> EnvironmentDetails:
        """Choose an interpreter of the image, and describe the environment."""
        python, wanted = self._python, self._language
        facts = ImageFacts(
            digest=unpacked.digest,
            variables=unpacked.variables,
            path=unpacked.path,
            working_directory=unpacked.working_directory,
            layers=unpacked.layers,
        )
        details = EnvironmentDetails(
            interpreter="bash",
            program="",
            agent_python=python.program,
            prefixes=tuple(python.prefixes),
            version="",
            lock=unpacked.digest,
            versions={},
            modules=(),
            image=facts,
        )
        problems: list[str] = []
        for language, question in _QUESTIONS.items():
            if wanted not in ("", language):
                continue
            for name in question.programs:
                if program := unpacked.programs.get(name):
                    version, why = await self._ask(made, details, question, program)
                    if not why:
                        return replace(
                            details, interpreter=language, program=program, version=version
                        )
                    problems.append(f"{program} {why}")
        why = "; ".join(problems) or "none is on its PATH"
        if wanted:
            title = next(q.title for each, q in _QUESTIONS.items() if each == wanted)
            raise InstallError(
                f"The image has no {title} that sessions can use: {why}"[:600],
                "Choose another `--interpreter`, or leave it out.",
            )
        self._report.say(f"it has no interpreter that sessions can use: {why}")
        return details

    async def _ask(
        self, made: str, details: EnvironmentDetails, question: _Question, program: str
    ) -> tuple[str, str]:
        """Ask an interpreter for its version, in a jail like that of a session.

        Returns:
            The version, and why it cannot be used; empty if it can.
        """
        seen = await in_thread(shown_image, made, details.agent_python, details.prefixes)
        assert details.image is not None
        jail = BuildJail(
            bwrap=self._bwrap(),
            user=self._user,
            python=self._python.program,
            directory=made,
            environment=made,
            shown=[(bind.source, bind.target) for bind in seen.binds],
            variables=variables_of(details.image),
            say=self._report.say,
            image=seen.image,
            links=seen.links,
        )
        with trio.move_on_after(ASK_TIMEOUT_S):
            ran = await jail.run([program, *question.arguments])
            found = next(filter(None, map(VERSION.fullmatch, ran.tail)), None)
            if found is None:
                last = ran.tail[-1] if ran.tail else f"exit code {ran.status}"
                return "", f"does not work in a session: {last[:300]}"
            numbers = tuple(int(number) for number in found["numbers"].split("."))
            if numbers < question.oldest:
                oldest = ".".join(map(str, question.oldest))
                return "", f"is {question.title} {found['text'][:40]}, {oldest} is needed"
            return found["numbers"], ""
        return "", f"said nothing within {ASK_TIMEOUT_S:g} s"

    def _bwrap(self) -> str:
        if (bwrap := self._launcher.bwrap_path) is None:
            raise missing_bwrap()
        return bwrap

    # The digest that was agreed to.

    @property
    def _pin_file(self) -> str:
        return f"{self._request.name}.image.txt"

    def _pinned(self) -> tuple[str, str]:
        """The digest in the file of an earlier build of the same reference, and the file's path."""
        if self._request.refresh:
            return "", ""
        for directory in self._request.lock_directories:
            path = os.path.join(directory, self._pin_file)
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    lines = [line.strip() for line in file.read(4096).splitlines()]
            except OSError:
                continue
            lines = [line for line in lines if line and not line.startswith("#")]
            if lines[:1] == [self._request.wanted.image] and _DIGEST.fullmatch(lines[-1]):
                return lines[-1], path
        return "", ""

    def _keep_pin(self, digest: str) -> tuple[str, str]:
        """Write the file. Returns its path and a note."""
        note = ""
        text = f"# Image of the environment {self._request.name}, by nsm.\n"
        text += f"{self._request.wanted.image}\n{digest}\n"
        for directory in self._request.lock_directories:
            path = os.path.join(directory, self._pin_file)
            try:
                locks.write(path, text)
            except OSError as error:
                note = f"its digest is not in {directory} ({error.strerror})"
            else:
                return path, note
        return "", note


def _read_answer(path: str) -> _Unpacked:
    told = json.loads(read_left(path, MAX_ANSWER_BYTES))
    if "error" in told:
        said = str(told["error"])
        raise InstallError(f"The image cannot be used: {said}", _hint(said))
    return decode(_Unpacked, told)


def _hint(said: str) -> str:
    if "is wanted" in said:
        return "`nsm env update` takes the image that is there now."
    if "No space left" in said:
        return "Free some space, then `nsm env update`."
    return ""
