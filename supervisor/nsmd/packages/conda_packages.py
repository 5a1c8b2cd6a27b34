"""Environments of conda packages, with a Python among them; lists of such packages that projects
have (`environment.yml`, `pixi.toml`, `conda-lock.yml`, `pixi.lock`), and nsm's own locks of them:
their URLs and hashes, one a line. The lists are read by functions that block.

conda, mamba and micromamba install from such a lock, too (`create --file`). It is for one platform,
since their packages are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, cast

from nsm.dataclass import dataclass, replace
from nsmd.jail.interpreters import (
    MINIMUM_PYTHON,
    Unreadable,
    find_python,
    modules_of,
)
from nsmd.model.host_rules import AllowList
from nsmd.packages import conda_program, locks
from nsmd.packages.build_jail import (
    ENV,
    PLACE,
    PYTHON,
    BuildJail,
    why_failed,
)
from nsmd.packages.build_network import BuildSettings, conda_settings
from nsmd.packages.language_packages import LanguagePackages
from nsmd.packages.locks import MAX_LOCK_BYTES, LockError, hash_of_wanted
from nsmd.packages.package_builds import InstallError, InstallRequest, in_thread
from nsmd.packages.sharing import uncompiled
from nsmd.packages.store import (
    BUILD,
    EnvironmentDetails,
    EnvironmentStore,
    Staging,
    listed,
    make_directory,
    read_left,
)
from nsmd.packages.text_files import (
    TextFileError,
    YamlError,
    parse_yaml,
    read_text,
    rows,
    table,
    words,
)

PLATFORM = {"x86_64": "linux-64"}.get(platform.machine(), f"linux-{platform.machine()}")
"""This machine's platform, as conda calls it."""

FILE_NAME = r"(?P<name>[a-z0-9_][a-z0-9_.+-]*)-(?P<version>[^-/\s]+)-[^-/\s]+\.(?:conda|tar\.bz2)"
_URL = re.compile(
    rf"(?P<channel>https?://[^\s#?]+)/(?P<subdir>[a-z0-9]+(?:-[a-z0-9_]+)?)/(?P<file>{FILE_NAME})"
)
_PIN = re.compile(r"(?P<url>[^\s#]+)#sha256:(?P<sha256>[0-9a-f]{64})")
_WANTED = "# wanted: "
_HEAD = "@EXPLICIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaPin:
    """One package: the URL of its channel, without a slash at the end, its directory and file
    there, and its hash.
    """

    channel: str
    place: str
    sha256: str

    @property
    def url(self) -> str:
        """URL of its file."""
        return f"{self.channel}/{self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaLock:
    """Exact packages for one platform.

    `wanted_hash` is a hash of what was wanted; empty if the file does not say it. `left_out` has
    what a project's own lock has besides, and is not installed.
    """

    pins: tuple[CondaPin, ...]
    wanted_hash: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def body(self) -> str:
        """All pins, without comments."""
        return "".join(f"{pin.url}#sha256:{pin.sha256}\n" for pin in self.pins)

    @property
    def digest(self) -> str:
        """Hash of the pins."""
        return hashlib.sha256(self.body.encode()).hexdigest()

    def text(self, name: str) -> str:
        """Make the file for an environment of that name."""
        return (
            f'# Exact packages of conda in nsm\'s environment "{name}", for {PLATFORM}.\n'
            "# nsm wrote this file, and installs what it says. To look for newer ones:\n"
            f"# nsm env update {name}\n"
            f"{_WANTED}{self.wanted_hash}\n{_HEAD}\n{self.body}"
        )


def parse(text: str) -> CondaLock:
    """Read a lock. Raises LockError if a line is not a URL with a hash."""
    pins: list[CondaPin] = []
    wanted_hash = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith(_WANTED):
            wanted_hash = line.removeprefix(_WANTED).strip()
        if line.startswith("#") or line == _HEAD:
            continue
        match = _PIN.fullmatch(line)
        if match is None:
            raise LockError(f"{line!r:.100} is not the URL of a package with #sha256:")
        pins.append(pin(match["url"], match["sha256"]))
    return lock(pins, wanted_hash)


def pin(url: str, sha256: str) -> CondaPin:
    """Make the pin of a package.

    Raises LockError if that is not the URL of one for this platform, or there is no hash.
    """
    match = _URL.fullmatch(url)
    if match is None or not url.isascii() or ".." in url:
        raise LockError(f"{url!r:.200} is not the URL of a package of conda")
    if match["subdir"] not in (PLATFORM, "noarch"):
        raise LockError(f"it has packages for {match['subdir']}, and this machine is {PLATFORM}")
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise LockError(f"it has no hash (sha256) for {match['name']}")
    place = f"{match['subdir']}/{match['file']}"
    return CondaPin(channel=match["channel"], place=place, sha256=sha256)


def lock(pins: list[CondaPin], wanted_hash: str = "", left_out: tuple[str, ...] = ()) -> CondaLock:
    """Make a lock; the same packages in another order are the same lock."""
    ordered = tuple(sorted(set(pins), key=lambda each: each.url))
    return CondaLock(pins=ordered, wanted_hash=wanted_hash, left_out=left_out)


MAX_SPECS = 1024
MAX_SPEC_CHARS = 300

_SPEC = re.compile(
    r"(?:(?P<channel>[A-Za-z0-9_][A-Za-z0-9_./:-]*)::)?"
    r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?P<versions>[\s=<>!~*\[][^\n]*)?"
)
_CHANNEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.~:/@%+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaWanted:
    """Conda packages that are wanted: names or URLs of channels, the first one preferred (none for
    the user's own), and packages with versions as conda writes them, perhaps with a channel
    (`c::name`).
    """

    channels: tuple[str, ...]
    specs: tuple[str, ...]


def read(path: str) -> CondaWanted | CondaLock:
    """Read a list, or raise LockError. A `pixi.lock` beside a `pixi.toml` says all about the
    packages.
    """
    name = os.path.basename(path)
    if name == "pixi.toml":
        beside = os.path.join(os.path.dirname(path), "pixi.lock")
        if os.path.lexists(beside):
            return _of_pixi_lock(_yaml(beside))
        return _of_pixi(_toml(path))
    found = _yaml(path)
    if name == "pixi.lock":
        return _of_pixi_lock(found)
    return _of_conda_lock(found) if name == "conda-lock.yml" else _of_environment(found)


def _of_environment(found: Mapping[str, Any]) -> CondaWanted:
    specs: list[str] = []
    for each in rows(found.get("dependencies")):
        groups = table(each).values()
        if isinstance(each, dict):
            _refuse_pip([name for group in groups for name in map(words, rows(group))])
        else:
            specs.append(words(each))
    return _wanted(map(words, rows(found.get("channels"))), specs)


def _of_pixi(found: Mapping[str, Any]) -> CondaWanted:
    head = table(found.get("workspace")) or table(found.get("project"))
    target = table(found.get("target"))
    parts = [found, *(table(target.get(key)) for key in ("unix", "linux", PLATFORM))]
    channels = [words(table(c).get("channel") or c) for c in rows(head.get("channels"))]
    # A later part replaces what an earlier one says of a package.
    dependencies = {
        name: value for part in parts for name, value in table(part.get("dependencies")).items()
    }
    for part in parts:
        pypi = table(part.get("pypi-dependencies"))
        _refuse_pip([name for name, value in pypi.items() if "path" not in table(value)])
    return _wanted(channels, [_spec(name, value) for name, value in dependencies.items()])


def _spec(name: str, value: object) -> str:
    """Write what a pixi.toml says of a package as conda does: a space before versions."""
    facts = table(value)
    version = words(facts.get("version", value))
    version = "" if version == "*" else version
    told = [f'{key}="{words(facts[key])}"' for key in ("build", "subdir") if key in facts]
    channel = f"{words(facts['channel'])}::" if "channel" in facts else ""
    return f"{channel}{name} {version}{'[' + ','.join(told) + ']' if told else ''}".strip()


def _of_pixi_lock(found: Mapping[str, Any]) -> CondaLock:
    default = table(table(found.get("environments")).get("default"))
    wanted = [table(each) for each in rows(table(default.get("packages")).get(PLATFORM))]
    if not wanted:
        raise LockError(f"it has no packages of an environment `default` for {PLATFORM}")
    hashes: dict[str, str] = {}
    for each in map(table, rows(found.get("packages"))):
        url = words(each.get("conda")) or words(each.get("url"))
        hashes[url] = words(each.get("sha256"))
    elsewhere = [words(each.get("pypi")) for each in wanted if "conda" not in each]
    _refuse_pip([each.rpartition("/")[2] for each in elsewhere if each.startswith("http")])
    directories = tuple(each for each in elsewhere if not each.startswith("http"))
    urls = [words(each["conda"]) for each in wanted if "conda" in each]
    return _lock([pin(url, hashes.get(url, "")) for url in urls], directories)


def _of_conda_lock(found: Mapping[str, Any]) -> CondaLock:
    if words(found.get("version")) != "1":
        raise LockError("its format is not 1, which conda-lock writes")
    pins: list[CondaPin] = []
    for each in map(table, rows(found.get("package"))):
        if words(each.get("platform")) != PLATFORM:
            continue
        if words(each.get("category")) not in ("", "main", "dev"):
            continue
        if words(each.get("manager")) != "conda":
            _refuse_pip([words(each.get("name"))])
        sha256 = words(table(each.get("hash")).get("sha256"))
        pins.append(pin(words(each.get("url")), sha256))
    return _lock(pins)


def _lock(pins: Sequence[CondaPin], left_out: tuple[str, ...] = ()) -> CondaLock:
    if not pins:
        raise LockError(f"it has no packages for {PLATFORM}")
    return lock(list(pins), left_out=left_out)


def _wanted(channels: Iterator[str] | Sequence[str], specs: Sequence[str]) -> CondaWanted:
    if not specs:
        raise LockError("it names no package")
    if len(specs) > MAX_SPECS:
        raise LockError(f"it names {len(specs)} packages, and nsm takes {MAX_SPECS}")
    named: list[str] = list(channels)
    for spec in specs:
        match = _SPEC.fullmatch(spec)
        if match is None or len(spec) > MAX_SPEC_CHARS or not spec.isprintable() or "://" in spec:
            raise LockError(f"{spec!r:.100} is not a package of conda with versions")
        if match["channel"]:
            named.append(match["channel"])
    for channel in named:
        if not _CHANNEL.fullmatch(channel) or ".." in channel:
            raise LockError(f"{channel!r:.100} is not the name or URL of a channel")
    return CondaWanted(channels=tuple(dict.fromkeys(named)), specs=tuple(dict.fromkeys(specs)))


def _refuse_pip(names: Sequence[str]) -> None:
    if names:
        raise LockError(
            f"it has packages of PyPI, too ({', '.join(names)[:100]}), and nsm installs those of "
            "conda only; conda-forge has most of them, often by the same name"
        )


def _yaml(path: str) -> Mapping[str, Any]:
    try:
        return table(parse_yaml(read_text(path, MAX_LOCK_BYTES)))
    except (TextFileError, YamlError) as error:
        raise LockError(f"{os.path.basename(path)}: {error}") from error


def _toml(path: str) -> Mapping[str, Any]:
    try:
        return cast("Mapping[str, Any]", tomllib.loads(read_text(path, MAX_LOCK_BYTES)))
    except (TextFileError, ValueError, RecursionError) as error:
        raise LockError(f"{os.path.basename(path)}: {error!s:.100}") from error


META = "conda-meta"
"""Directory with a file for each installed package."""

_CACHE = f"{BUILD}/cache/conda"
_FETCHED = "/run/nsm/packages"
"""Directory of fetched packages while they are linked; nobody can change them there."""

_PROGRAM = f"{PLACE}/conda_program.py"
_WISHES, _RESOLVED, _FILES = "wanted.json", "resolved.json", "files.json"
MAX_RESOLVED_BYTES = 16 * 1024 * 1024

_INSTALLED = re.compile(FILE_NAME.replace(r"\.(?:conda|tar\.bz2)", r"\.json"))


class CondaPackages(LanguagePackages):
    """Conda packages that are wanted, which py-rattler, the library of pixi, installs by a Python
    of the host; the first channel of the indexes is preferred.
    """

    tool = "py-rattler"
    variables: ClassVar[Mapping[str, str]] = {"XDG_CACHE_HOME": f"{BUILD}/cache"}

    def __init__(self, request: InstallRequest, unreadable: Unreadable) -> None:
        wanted = request.wanted
        if wanted.interpreter:
            raise InstallError(
                "An environment of conda has a Python of its own",
                "Leave out `--python`, and name its version in the list: `python=3.12`.",
            )
        found = find_python(None, request.search_path, home=request.home, unreadable=unreadable)
        if isinstance(found, str):
            raise InstallError(f"There is no Python to build it with: {found}")
        super().__init__(request, found, facts=(self.tool,), lock_file="conda.txt")
        try:
            self.given = read(wanted.conda)
        except LockError as error:
            raise InstallError(f"{wanted.conda} cannot be used: {error}") from error
        if isinstance(self.given, CondaLock):
            self.channels = tuple(dict.fromkeys(pin.channel for pin in self.given.pins))
        else:
            self.channels = self.given.channels  # empty for the user's own
        self._command = (found.program, "-I", _PROGRAM)
        self._channels: Sequence[str] = ()

    @property
    def wanted_hash(self) -> str:
        given = self.given
        if isinstance(given, CondaLock):
            return given.digest
        return hash_of_wanted(
            {"channels": given.channels, "conda": sorted(given.specs), "platform": PLATFORM}
        )

    def own_lock(self) -> tuple[CondaLock, str, str] | None:
        if isinstance(self.given, CondaWanted):
            return None
        names = ", ".join(self.given.left_out)[:200]
        note = f"directories are not installed as packages: {names}" if names else ""
        return self.given, self.request.wanted.conda, note

    def read_lock(self, path: str) -> CondaLock | None:
        return locks.read(path, parse, follow=True)

    def find_tool(self) -> Sequence[tuple[str, str]]:
        spec = importlib.util.find_spec("rattler")
        if spec is None or spec.origin is None:
            raise InstallError(
                "There is no py-rattler to install packages of conda with",
                "Install it beside nsm, as its extra `conda`: `pip install 'nsm-sessions[conda]'`.",
            )
        self._channels = [index.url.removesuffix("/") for index in self.indexes.conda]
        return (
            (os.path.dirname(spec.origin), f"{PLACE}/rattler"),
            (os.path.abspath(conda_program.__file__), _PROGRAM),
        )

    def problems(self) -> Sequence[str]:
        return self.indexes.conda_problems

    def prepare(self, staging: Staging) -> None:
        make_directory(staging.environment)
        if isinstance(self.given, CondaWanted):
            numbers: dict[str, int] = {}
            for number, index in enumerate(self.indexes.conda):
                numbers.setdefault(index.name, number)
            wanted = {
                "channels": self._channels,
                "specs": [_in_channel(spec, numbers) for spec in self.given.specs],
                "platform": PLATFORM,
                "cache": f"{_CACHE}/channels",
            }
            staging.write(_WISHES, [json.dumps(wanted)])

    def resolve(self, work: str, *, builds: bool) -> list[str]:
        del builds
        return [*self._command, "resolve", f"{work}/{_WISHES}", f"{work}/{_RESOLVED}"]

    def resolved(self, place: str) -> CondaLock:
        found: list[tuple[int, str, str]] = json.loads(
            read_left(f"{place}/{_RESOLVED}", MAX_RESOLVED_BYTES)
        )
        pins = [
            pin(f"{self._channels[number]}/{path.lstrip('/')}", sha256)
            for number, path, sha256 in found
        ]
        return lock(pins, self.wanted_hash)

    def install(self, work: str, *, builds: bool) -> list[str]:
        del builds
        return [*self._command, "fetch", f"{work}/{_FILES}", f"{_CACHE}/packages"]

    def settings(self, listed: AllowList) -> BuildSettings:
        return conda_settings(self.indexes, listed)

    def write_lock(self, staging: Staging, lock: CondaLock) -> None:
        for pin in lock.pins:
            if pin.channel not in self._channels:
                raise InstallError(
                    f"The lock has a package from {pin.channel}, not a channel of the list",
                    f"`nsm env update {self.request.name}` makes the lock again.",
                )
        files = [(pin.url, pin.place, pin.sha256) for pin in lock.pins]
        staging.write(_FILES, [json.dumps(files)])

    async def finish(
        self,
        staging: Staging,
        jail: BuildJail,
        store: EnvironmentStore,
        lock: CondaLock,
    ) -> EnvironmentDetails:
        del store  # other environments have no files of these packages
        await in_thread(staging.check, "")
        fetched = os.path.join(staging.mount, _CACHE.removeprefix(f"{BUILD}/"), "packages")
        # From here on code of the packages may run, so this jail can change no cache.
        alone = replace(jail, shown=[*jail.shown, (fetched, _FETCHED)]).alone(staging.place)
        ran = await alone.run([*self._command, "link", f"{BUILD}/{_FILES}", _FETCHED, BUILD])
        if ran.status != 0:
            raise InstallError(*why_failed(ran, self.tool, (), done="linked"))
        details, sources = await in_thread(self._look, staging, lock)
        if sources:
            # What cannot be compiled cannot be imported either: no failure here.
            await alone.run(
                [
                    *(PYTHON, "-I", "-S", "-m", "compileall", "-q", "-q", "-j", "0"),
                    *("--invalidation-mode", "unchecked-hash", "-i", f"{BUILD}/sources.txt"),
                ]
            )
        return details

    def _look(self, staging: Staging, lock: CondaLock) -> tuple[EnvironmentDetails, list[str]]:
        """Check what was linked, and describe it. Returns also what packages bring as source only,
        which is in `sources.txt`.
        """
        staging.check(META)
        made = staging.environment
        versions = _installed(made)
        version = _check_python(made, versions)
        library = f"lib/python{'.'.join(map(str, version[:2]))}/site-packages"
        sources: list[str] = []
        with suppress(FileNotFoundError):  # a Python alone may have no such directory
            staging.check(library)
            tag = f"cpython-{version[0]}{version[1]}"
            sources = uncompiled(os.path.join(made, library), tag)
            staging.write("sources.txt", [f"{ENV}/{library}/{path}" for path in sources])
        details = EnvironmentDetails(
            interpreter="python",
            program=PYTHON,
            agent_python=PYTHON,
            prefixes=(),
            version=".".join(map(str, version)),
            lock=lock.digest,
            versions=versions,
            modules=modules_of(made, version),
        )
        return details, sources


def _in_channel(spec: str, numbers: Mapping[str, int]) -> tuple[int | None, str]:
    """Split a package from its channel's number; None if any will do."""
    channel, named, rest = spec.rpartition("::")
    return (numbers.get(channel), rest) if named else (None, spec)


def _installed(made: str) -> dict[str, str]:
    """Versions of the installed packages, by name."""
    found = map(_INSTALLED.fullmatch, listed(os.path.join(made, META)))
    return {match["name"]: match["version"] for match in found if match is not None}


def _check_python(made: str, versions: Mapping[str, str]) -> tuple[int, ...]:
    """Return the version of the environment's Python; InstallError if it has none for sessions."""
    hint = f"Add `python>={'.'.join(map(str, MINIMUM_PYTHON))}` to its packages."
    if "python" not in versions:
        raise InstallError("The environment has no Python, which sessions run in", hint)
    version = tuple(int(number) for number in re.findall(r"\d+", versions["python"])[:3])
    if version < MINIMUM_PYTHON:
        raise InstallError(f"Its Python is {versions['python']}, which is too old", hint)
    program = os.path.realpath(os.path.join(made, "bin", "python"))
    inside = program.startswith(f"{os.path.realpath(made)}/")
    if not inside or not stat.S_ISREG(os.lstat(program).st_mode):
        raise InstallError("Its Python is not a program of the environment itself")
    return version
