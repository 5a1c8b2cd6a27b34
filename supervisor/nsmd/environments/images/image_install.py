"""The installer's way from a reference to an image to an environment.

Images of registries are fetched by skopeo, which knows the user's registries and logins. The
installer reads nothing of an image itself: a program in a jail unpacks it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

import trio

from nsm.dataclass import dataclass, replace
from nsm.wire.decode import DecodeError, decode
from nsmd.environments import images
from nsmd.environments.host_presets import (
    MINIMUM_BASH,
    MINIMUM_NODE,
    MINIMUM_PYTHON,
    find_python,
)
from nsmd.environments.images.image_root import ROOT, shown_image, variables_of
from nsmd.environments.interpreters import FoundInterpreter
from nsmd.environments.packages import locks
from nsmd.environments.packages.build_jail import BuildJail, InstallError
from nsmd.environments.packages.installer_protocol import Installed, InstallRequest
from nsmd.environments.packages.sharing import share_image
from nsmd.environments.packages.store import (
    EnvironmentDetails,
    EnvironmentStore,
    ImageFacts,
    Staging,
    hash_of,
    read_left,
)
from nsmd.host.package_manager import install_command
from nsmd.jail import BwrapLauncher
from nsmd.jail.arguments import SYNTHETIC_FILES
from nsmd.jail.bubblewrap import missing_bwrap
from nsmd.model.packages import ImageReference, parse_image
from nsmd.model.values import Interpreter

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024

_FATAL = re.compile(r'level=fatal msg="(?P<text>(?:[^"\\]|\\.)*)"')


class Registry:
    """Registries that a user's skopeo reaches."""

    def __init__(
        self,
        search_path: str,
        environ: Mapping[str, str],
        place: str,
        say: Callable[[str], None],
    ) -> None:
        program = shutil.which("skopeo", path=search_path)
        if program is None:
            raise InstallError(
                "There is no skopeo, which fetches images of registries",
                f"Install it: {install_command('skopeo')}",
            )
        self._program = program
        self._environ = environ
        self._place = place
        self._say = say

    async def digest(self, reference: ImageReference) -> str:
        """Ask a registry for the digest of what a reference means now."""
        if reference.digest:
            return reference.digest
        name = f"docker://{reference.place}" + (f":{reference.tag}" if reference.tag else "")
        self._say(f"asking for {name}")
        path = os.path.join(self._place, "manifest.json")
        await self._run(["inspect", "--raw", name], path)
        try:
            # The registry's own word is not needed: a digest is the hash of these bytes.
            data = read_left(path, MAX_MANIFEST_BYTES).encode()
        except ValueError as error:
            raise InstallError(f"The manifest of {name} cannot be read: {error}") from error
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    async def fetch(self, reference: ImageReference, digest: str) -> str:
        """Fetch an image; return the path of the layout with it."""
        layout = os.path.join(self._place, "fetched")
        name = reference.pinned(digest)
        self._say(f"fetching {name}")
        await self._run(["copy", "--quiet", name, f"oci:{layout}:image"], os.devnull)
        return layout

    async def _run(self, words: Sequence[str], output: str) -> None:
        errors = os.path.join(self._place, "skopeo.log")
        with open(output, "wb") as out, open(errors, "wb") as err:  # noqa: ASYNC230  # no one waits
            ran = await trio.run_process(
                [self._program, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd="/",
                env=dict(self._environ),
                check=False,
            )
        if ran.returncode == 0:
            return
        with open(errors, "rb") as file:  # noqa: ASYNC230
            said = file.read(MAX_ERROR_BYTES).decode(errors="replace")
        for line in said.splitlines():
            self._say(line)
        raise InstallError(
            f"skopeo cannot fetch it: {_cause(said, ran.returncode)}",
            "Check the image's name, and `skopeo login` if it is private.",
        )


def _cause(said: str, status: int) -> str:
    found = _FATAL.search(said)
    if found is not None:
        return found["text"].replace('\\"', '"').rstrip(".")[:600]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:600].rstrip(".") if lines else f"it ended with {status}"


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
from nsmd.environments.images.unpack import main
main()
"""

_LEFT_OUT = ("ld.so.preload",)
"""Files of /etc that are not for the host's loader, which starts the agent."""

_EMPTY: Mapping[str, str] = {"resolv.conf": ""}
"""Files of /etc over which others are mounted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """How to ask an interpreter of an image for its version."""

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
_VERSION = re.compile(r"version (?P<text>(?P<numbers>[0-9]+(?:\.[0-9]+)*)\S*)")


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
        self,
        request: InstallRequest,
        launcher: BwrapLauncher,
        environ: Mapping[str, str],
        *,
        say: Callable[[str], None],
        phase: Callable[[str], None],
    ) -> None:
        self._request = request
        self._launcher = launcher
        self._environ = environ
        self._say = say
        self._phase = phase
        self._store = EnvironmentStore(request.store)
        # Modules to preload are Python's.
        self._language = request.wanted.language or ("python" if request.wanted.preload else "")
        try:
            self._reference = parse_image(request.wanted.image)
        except ValueError as error:
            raise InstallError(f"{request.wanted.image!r} {error}") from error
        found = find_python(
            None,
            request.search_path,
            home=request.home,
            unreadable=launcher.user.why_unreadable,
        )
        if isinstance(found, str):
            raise InstallError(
                f"There is no Python for the agent: {found}", "`nsm doctor` says what nsm needs."
            )
        self._python: FoundInterpreter = found

    async def make(self) -> Installed:
        """Make the environment, unless it is there.

        Raises:
            InstallError, OSError: it cannot be made.
        """
        pinned, lock = self._pinned()
        if pinned and (path := self._there(pinned)):
            return Installed(path=path, lock=lock)
        self._check_place()
        # The one bound that holds for skopeo, too: the size of each file.
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_BYTES, MAX_BYTES))
        with self._store.building(alone=True) as staging:
            path, digest = await self._build(staging, pinned)
        lock, note = self._keep_pin(digest)
        return Installed(path=path, lock=lock, note=note)

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
            self._phase("fetching")
            registry = Registry(self._request.search_path, self._environ, staging.place, self._say)
            digest = pinned or await registry.digest(reference)
            if path := self._there(digest):
                return path, digest
            fetched = await registry.fetch(reference, digest)
            source, tag = f"{staging.work}/{os.path.basename(fetched)}", "image"
            shown = []
        self._phase("unpacking")
        expected = "" if reference.transport == "docker" else pinned
        unpacked = await self._unpack(staging, source, shown, tag, expected)
        digest = digest or unpacked.digest
        if path := self._there(digest):
            return path, digest
        self._phase("checking")
        details = await self._look(staging.environment, unpacked)
        if unpacked.left_out:
            self._say(f"left out {unpacked.left_out} devices and pipes")
        self._phase("publishing")
        await trio.to_thread.run_sync(share_image, self._store, staging.environment, details)
        path = await trio.to_thread.run_sync(
            self._store.publish, staging, os.path.basename(self._path(digest)), details
        )
        return path, digest

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
        os.makedirs(os.path.join(staging.environment, ROOT))
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
            user=self._launcher.user,
            python=self._python.program,
            directory=staging.mount,
            environment=staging.environment,
            shown=(
                *((each, each) for each in self._python.prefixes),
                (folder, f"{LIBRARY}/nsmd/environments/images"),
                *shown,
            ),
            variables={"TMPDIR": f"{staging.work}/tmp"},  # noqa: S108  # not a directory
            say=self._say,
        )
        ran = await jail.run([self._python.program, "-I", "-S", "-c", _START, json.dumps(asked)])
        staging.check(ROOT)
        try:
            told = json.loads(read_left(f"{staging.place}/answer.json", MAX_ANSWER_BYTES))
            if "error" in told:
                said = str(told["error"])
                raise InstallError(f"The image cannot be used: {said}", _hint(said))
            return decode(_Unpacked, told)
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
        self._say(f"it has no interpreter that sessions can use: {why}")
        return details

    async def _ask(
        self, made: str, details: EnvironmentDetails, question: _Question, program: str
    ) -> tuple[str, str]:
        """Ask an interpreter for its version, in a jail like that of a session.

        Returns:
            The version, and why it cannot be used; empty if it can.
        """
        seen = shown_image(made, details.agent_python, details.prefixes)
        assert details.image is not None
        jail = BuildJail(
            bwrap=self._bwrap(),
            user=self._launcher.user,
            python=self._python.program,
            directory=made,
            environment=made,
            shown=[(bind.source, bind.target) for bind in seen.binds],
            variables=variables_of(details.image),
            say=self._say,
            image=seen.image,
            links=seen.links,
        )
        with trio.move_on_after(ASK_TIMEOUT_S):
            ran = await jail.run([program, *question.arguments])
            found = next(filter(None, map(_VERSION.fullmatch, ran.tail)), None)
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


def _hint(said: str) -> str:
    if "is wanted" in said:
        return "`nsm env update` takes the image that is there now."
    if "No space left" in said:
        return "Free some space, then `nsm env update`."
    return ""
