"""Files that describe programs: each one as a program, or the reason why it describes none; all
files of the directory, watched; and mistakes in them, for people.

A file is Markdown with YAML between `---` lines. Of YAML it has only what definitions need: keys
with single values or lists of them. Anchors, aliases and tags, which make YAML dangerous or large,
are refused before anything is made of it, and nothing nests.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from nsm import paths
from nsm.dataclass import dataclass, field
from nsm.wire.decode import DecodeError, decode
from nsm.wire.errors import BadProgramError
from nsmd.bridge.commands import open_command
from nsmd.bridge.programs import NAME, Problem, Program, is_control
from nsmd.host.paths import Trail, WatchedPaths, printable, trusted_owners
from nsmd.host.source_watcher import SourceWatcher
from nsmd.model.settings import Settings

log = logging.getLogger(__name__)

MAX_DEFINITIONS = 256
"""Largest number of definitions, the first by name. Each is a line that models read."""

MAX_FILE_BYTES = 256 * 1024

MAX_FRONT_MATTER_CHARACTERS = 16 * 1024
"""Largest front matter: the parser takes some 20 us per character, in the thread that reads."""

SUFFIX = ".md"

KEYS = "name description command timeout_seconds cwd env max_args allow_options".split()
"""Keys that a front matter may have."""

_MOST_READS = 3
"""Attempts to read a file that changes while it is read."""

EXIT_BAD = 1

MOST_TOLD = 3
"""Largest number of mistakes to name in one line, for the process that started the supervisor."""


class DefinitionError(Exception):
    """A file is not a valid definition: what was found and expected, and the line, if it is one."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


# One file. All of this blocks.


def read_definition(path: str, trail: Trail, home: str) -> Program | Problem:
    """Read a file's definition, and note in the trail the paths on which the answer depends."""
    name: str | None = None
    try:
        values, lines, body = parse(_content(path, trail))
        if isinstance(said := values.get("name"), str) and NAME.fullmatch(said):
            name = said
        about = {"documentation": body, "source": path, "line": lines.get("name", 1)}
        program = _described(values, lines, about, home)
        _check_places(program, trail, lines)
    except DefinitionError as error:
        return Problem(source=path, reason=error.reason, line=error.line, name=name)
    return program


def _described(
    values: dict[str, Any], lines: Mapping[str, int], about: Mapping[str, Any], home: str
) -> Program:
    """Make a program of the values of a front matter."""
    for key in values:
        if key not in KEYS:
            known = ", ".join(f"`{each}`" for each in KEYS)
            raise DefinitionError(f"`{key:.80}` is not known; there are {known}", lines[key])
    for key in ("command", "cwd"):
        value = values.get(key)
        if isinstance(value, str) and (value == "~" or value.startswith("~/")):
            values[key] = home + value[1:]
    try:
        return decode(Program, {**values, **about})
    except DecodeError as error:
        line = lines.get(error.path.partition("[")[0], 1)
        raise DefinitionError(str(error), line) from None


def _content(path: str, trail: Trail) -> bytes:
    """Read the content of a file."""
    try:
        real = trail.follow(path)
        for _ in range(_MOST_READS):
            if (content := _read_once(real)) is not None:
                return content
    except OSError as error:
        missing = error.errno == errno.ENOENT
        why = "it is a link to nothing" if missing else printable(f"{error.strerror}")
        raise DefinitionError(why) from None
    raise DefinitionError("it changes while it is read; it is read again after the next change")


def _read_once(path: str) -> bytes | None:
    """Read the content of a regular file; None if it changed meanwhile."""
    # Its type is checked before it is opened: opening a device may do something.
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise DefinitionError("it is not a file")
        fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(place)
    with open(fd, "rb") as file:
        before = state_of(fd)
        data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise DefinitionError(f"it is larger than {MAX_FILE_BYTES // 1024} KiB")
        return data if state_of(fd) == before else None


def state_of(fd: int) -> tuple[int, int, int]:
    """Return the part of a file's state that a write changes."""
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def parse(data: bytes) -> tuple[dict[str, Any], dict[str, int], str]:
    """Parse a file: the values of its front matter, the lines of these keys, and what follows."""
    front, body = _split(_text(data))
    return *_parse_yaml(front), body


def _text(data: bytes) -> str:
    """Decode a file's text, with newlines as line ends."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = data.count(b"\n", 0, error.start) + 1
        raise DefinitionError(f"it is not UTF-8 (byte {data[error.start]:#04x})", at) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for number, line in enumerate(text.split("\n"), 1):
        for character in line:
            if character != "\t" and is_control(character):
                raise DefinitionError(f"control character U+{ord(character):04X}", number)
    return text


def _split(text: str) -> tuple[str, str]:
    """Split a text into the front matter, with an empty line in place of its first, and the rest,
    without empty lines around.
    """
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        raise DefinitionError("it does not begin with front matter: a line `---` is expected", 1)
    last = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if last is None:
        raise DefinitionError("its front matter has no end: a second line `---` is expected", 1)
    front = "\n".join(["", *lines[1:last]]) + "\n"
    if len(front) > MAX_FRONT_MATTER_CHARACTERS:
        raise DefinitionError(
            f"the front matter has {len(front)} characters; at most "
            f"{MAX_FRONT_MATTER_CHARACTERS} are read",
            1,
        )
    return front, "\n".join(lines[last + 1 :]).strip("\n")


def _parse_yaml(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Parse a front matter, and find the lines of its keys."""
    import yaml as library  # type: ignore[import-untyped]  # 40 ms, for who has definitions  # noqa: PLC0415

    yaml = cast("Any", library)  # it has no types
    try:
        _refuse_dangerous(yaml, text)
        loader = yaml.SafeLoader(text)  # in Python: the one in C words mistakes differently
        node = loader.get_single_node()
        if node is None:
            raise DefinitionError("its front matter is empty: `name: ...` is expected", 1)
        if not isinstance(node, yaml.MappingNode):
            line = node.start_mark.line + 1
            raise DefinitionError(
                "its front matter must be keys with values, as `name: deploy`", line
            )
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise DefinitionError("a key must be one word", line)
            if key.value in lines:
                first = lines[key.value]
                raise DefinitionError(f"`{key.value}` is there twice, first in line {first}", line)
            lines[key.value] = line
        values = {key.value: loader.construct_object(value, deep=True) for key, value in node.value}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).partition("\n")[0]
        line = None if mark is None else mark.line + 1
        raise DefinitionError(f"no valid YAML: {what}", line) from None
    except (ValueError, OverflowError) as error:  # numbers and dates that are none
        raise DefinitionError(f"no valid YAML: {error}") from None
    return values, lines


def _refuse_dangerous(yaml: Any, text: str) -> None:
    """Refuse what makes YAML dangerous or large, before anything is made of it."""
    depth = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        line = token.start_mark.line + 1
        if isinstance(token, yaml.AnchorToken | yaml.AliasToken):
            reason = "anchors (`&...`) and aliases (`*...`) are not taken; quote text like that"
            raise DefinitionError(reason, line)
        if isinstance(token, yaml.TagToken | yaml.DirectiveToken):
            reason = "tags (`!...`) and directives (`%...`) are not taken; quote text like that"
            raise DefinitionError(reason, line)
        if isinstance(
            token,
            yaml.BlockMappingStartToken
            | yaml.FlowMappingStartToken
            | yaml.BlockSequenceStartToken
            | yaml.FlowSequenceStartToken,
        ):
            depth += 1
            if depth > 2:
                raise DefinitionError("lists and keys within these are not taken", line)
        elif isinstance(
            token, yaml.BlockEndToken | yaml.FlowMappingEndToken | yaml.FlowSequenceEndToken
        ):
            depth -= 1


def _check_places(program: Program, trail: Trail, lines: Mapping[str, int]) -> None:
    """Check the paths that a description names, and note what that depended on."""
    for path in filter(None, (program.command, program.cwd)):
        with suppress(OSError):  # an error shows when it is used
            trail.follow(path, trusted=False)
    try:
        open_command(program).close()
    except BadProgramError as error:
        raise DefinitionError(f"`command`: {error.data['reason']}", lines["command"]) from None
    if program.cwd is not None and not os.path.isdir(program.cwd):
        reason = f"`cwd` is {printable(program.cwd)}, which is not a directory"
        raise DefinitionError(reason, lines["cwd"])


# A directory of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionsScan:
    """Result of one look at the directory: programs by name, problems of the other files, and the
    paths on which all that depended.
    """

    programs: Mapping[str, Program] = field(default_factory=dict[str, Program])
    problems: tuple[Problem, ...] = ()
    places: WatchedPaths = field(default_factory=dict[str, frozenset[str]])


def read_directory(directory: str, home: str | None = None) -> DefinitionsScan:
    """Read the programs that a directory's files describe; a missing one has none. Blocks."""
    trail = Trail(trusted_owners())
    try:
        names = trail.list(trail.follow(directory))
    except FileNotFoundError:
        return DefinitionsScan(places=trail.places)
    except OSError as error:
        problem = Problem(source=directory, reason=printable(str(error.strerror)))
        return DefinitionsScan(problems=(problem,), places=trail.places)
    # Editors keep their own files there, with names that begin with a dot.
    names = [name for name in names if name.endswith(SUFFIX) and not name.startswith(".")]
    programs, problems = unique(
        [
            read_definition(os.path.join(directory, name), trail, home or paths.home())
            for name in names[:MAX_DEFINITIONS]
        ]
    )
    if len(names) > MAX_DEFINITIONS:
        reason = (
            f"it has {len(names)} definitions; those after the first {MAX_DEFINITIONS} are not read"
        )
        problems.append(Problem(source=directory, reason=reason))
    return DefinitionsScan(
        programs={program.name: program for program in programs},
        problems=tuple(sorted(problems, key=lambda problem: problem.source)),
        places=trail.places,
    )


def unique(found: list[Program | Problem]) -> tuple[list[Program], list[Problem]]:
    """Sort programs by name. Programs that share a name are dropped, with a problem."""
    problems = [each for each in found if isinstance(each, Problem)]
    of_name: dict[str, list[Program]] = {}
    for each in found:
        if isinstance(each, Program):
            of_name.setdefault(each.name, []).append(each)
    alone: list[Program] = []
    for name, those in sorted(of_name.items()):
        if len(those) == 1:
            alone += those
            continue
        for each in those:
            others = ", ".join(printable(other.source) for other in those if other is not each)
            problems.append(
                Problem(
                    source=each.source,
                    reason=f"the name `{name}` is that of {others}, too: neither is used",
                    line=each.line,
                    name=name,
                )
            )
    return alone, problems


class DefinitionsIndex:
    """All definitions of a directory, reread when they change between `begin` and `end`."""

    def __init__(self, directory: str, watcher: SourceWatcher) -> None:
        self.programs: Mapping[str, Program] = {}
        self.problems: Sequence[Problem] = ()
        self._directory = directory
        self._watcher = watcher
        self._subscribers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<DefinitionsIndex {self._directory} of {len(self.programs)} programs>"

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call a function whenever programs or problems have changed. Returns a function that ends
        this.
        """
        entry = partial(changed)  # a new object each time, so that each ends its own
        self._subscribers.append(entry)

        def end() -> None:
            if entry in self._subscribers:
                self._subscribers.remove(entry)

        return end

    async def begin(self) -> None:
        """Read the definitions, unless that takes long, and whenever they change."""

        def failed() -> DefinitionsScan:
            reason = "nsm failed to look at it; the supervisor's log has the details"
            return DefinitionsScan(problems=(Problem(source=self._directory, reason=reason),))

        look = partial(read_directory, self._directory)
        self._watcher.keep(self, printable(self._directory), look, self.use_scan, failed)
        await self._watcher.first_look(self)
        self._notify()

    def end(self) -> None:
        """Stop reading them: there are none any more."""
        self._watcher.end(self)
        self.programs, self.problems = {}, ()
        self._notify()

    async def read_again(self) -> None:
        """Read the definitions again now, for at most 5 s."""
        await self._watcher.look(self)

    def use_scan(self, found: DefinitionsScan, unwatched: str | None) -> None:
        """Use the result of a look."""
        problems = found.problems
        if unwatched is not None:
            reason = f"{unwatched}; it is looked at when somebody runs `nsm bridge ls`"
            problems = (*problems, Problem(source=self._directory, reason=reason))
        if (found.programs, problems) == (self.programs, self.problems):
            return
        for problem in problems:
            if problem not in self.problems:
                log.warning("%s", render(problem))
        self.programs, self.problems = found.programs, problems
        self._notify()

    def _notify(self) -> None:
        for changed in tuple(self._subscribers):
            changed()


# For people, before anybody asks for the programs.


def render(problem: Problem) -> str:
    """Format a problem as one line for people, like a compiler."""
    line = "" if problem.line is None else f":{problem.line}"
    return f"{printable(problem.source)}{line}: {problem.reason}"


def report(directory: str, settings: Settings | None, *, as_json: bool) -> int:
    """Print the programs that a directory's definitions describe, and the problems of others, as
    lines or as one JSON object. Returns the exit code: 1 if there is a problem.
    """
    found = read_directory(directory)
    enabled = settings is not None and settings.bridge.enabled
    if as_json:
        sys.stdout.write(json.dumps(_as_values(directory, found, enabled=enabled), indent=2) + "\n")
    else:
        sys.stdout.write(_as_text(directory, found, enabled=enabled))
        sys.stderr.write("".join(f"{render(problem)}\n" for problem in found.problems))
    return EXIT_BAD if found.problems else 0


def mistakes(directory: str, settings: Settings) -> str:
    """Collect the mistakes that keep a strict supervisor from starting; empty if there are none."""
    if not settings.bridge.enabled:
        return ""
    problems = read_directory(directory).problems
    told = [render(problem) for problem in problems[:MOST_TOLD]]
    if len(problems) > MOST_TOLD:
        told.append(f"and {len(problems) - MOST_TOLD} more: run `nsm bridge check`")
    return "; ".join(told)


def _as_text(directory: str, found: DefinitionsScan, *, enabled: bool) -> str:
    lines = [
        f"{program.name}: {program.command} ({printable(program.source)})"
        for program in found.programs.values()
    ]
    if not lines and not found.problems:
        lines.append(f"{printable(directory)} has no definitions (*.md)")
    if not enabled:
        lines.append("the bridge is off: `enabled = true` in `[bridge]` of config.toml has it on")
    return "".join(f"{line}\n" for line in lines)


def _as_values(directory: str, found: DefinitionsScan, *, enabled: bool) -> dict[str, object]:
    from dataclasses import asdict  # noqa: PLC0415  # a start without it is faster

    programs = [asdict(program) for program in found.programs.values()]
    for row in programs:
        row["timeout_seconds"] = row.pop("timeout_s")
        del row["documentation"], row["line"]
    problems = [asdict(problem) for problem in found.problems]
    return {
        "directory": directory,
        "enabled": enabled,
        "programs": programs,
        "problems": problems,
    }
