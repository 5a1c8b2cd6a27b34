"""Conformance cases: TOML files become values here, and nowhere else is their form known.

`README.md` beside this file documents the fields for people who write cases. The loader is strict:
an unknown or mistyped key is an error that names the file, the case and what is allowed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

Language = Literal["python", "bash", "node"]
LANGUAGES: tuple[Language, ...] = ("python", "bash", "node")
FOLDERS = ("any", *LANGUAGES)

CASES = Path(__file__).parent / "cases"

DEFAULT_TIMEOUT_S = 20.0
"""Time limit of a step that sets none: reached only if something hangs, which is a failure."""

Either = Literal["either"]
Probing = Literal["full", "stdout", "off"]
PROBINGS: tuple[Probing, ...] = ("full", "stdout", "off")
NEEDS = frozenset({"jail", "control"})
"""Features that a case may ask of a target besides those that its steps imply (README.md)."""


class CaseError(ValueError):
    """A file of cases says something that cannot be; the message names the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One execution and what its answer must be.

    Attributes:
        code: what runs.
        language: which interpreter; None for the case's own.
        timeout_s: limit that the target is given, seconds.
        interrupt_after: interrupt once this has been printed; None for no interrupt.
        reply_bytes: room for each stream in the answer; None for the target's default.
        probe: how the probe after this step is judged.
        stdout, stderr: the exact text; None where `..._has` or `..._like` speak for the stream.
        stdout_has, stderr_has: texts that must occur, in any order.
        stdout_lacks, stderr_lacks: texts that must not occur.
        stdout_like, stderr_like: regular expressions that must be found (``re.DOTALL``).
        exit_code: those that are right; None for any.
        displays: per display what it must have, by MIME type; True for any data; None: not judged.
        timed_out, interrupted, restarted: the flags; "either" where both are right.
        reason_has: text within the reason that the target gives for a restart.
        truncated: streams of which part must be left out, and whose file must be named; None: not
            judged.
        refused: the target must (or may, "either") refuse to run the code and say why.
        may_end: the session may end with a reason; the next step then has a fresh one.
    """

    code: str
    language: Language | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    interrupt_after: str | None = None
    reply_bytes: int | None = None
    probe: Probing = "full"
    stdout: str | None = ""
    stdout_has: tuple[str, ...] = ()
    stdout_lacks: tuple[str, ...] = ()
    stdout_like: tuple[str, ...] = ()
    stderr: str | None = ""
    stderr_has: tuple[str, ...] = ()
    stderr_lacks: tuple[str, ...] = ()
    stderr_like: tuple[str, ...] = ()
    exit_code: tuple[int, ...] | None = (0,)
    displays: tuple[Mapping[str, Any], ...] | None = ()
    timed_out: bool | Either = False
    interrupted: bool | Either = False
    restarted: bool | Either = False
    reason_has: str = ""
    truncated: tuple[str, ...] | None = ()
    refused: bool | Either = False
    may_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A few executions in a session of their own.

    Attributes:
        file: folder and name of the file without its ending, e.g. ``python/await``.
        name: unique in its file; what a report shows.
        spec: the sentence that the case checks, or where the idea comes from.
        language: interpreter of its steps.
        needs: properties that a target must have; see `NEEDS`.
        modules: Python's, that are not part of it and must be installed.
    """

    file: str
    name: str
    spec: str
    language: Language
    needs: frozenset[str]
    modules: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def id(self) -> str:
        """Unique among all cases."""
        return f"{self.file}[{self.language}] {self.name}"


@cache
def load_all(folder: Path = CASES) -> tuple[Case, ...]:
    """Every case below a folder that has the four of `FOLDERS`; read once, since it takes long.

    Raises:
        CaseError: a file is not what it ought to be.
    """
    stray = [path for path in folder.rglob("*.toml") if path.parent.name not in FOLDERS]
    if stray:
        raise CaseError(f"{stray[0]} is in none of the folders {', '.join(FOLDERS)}")
    cases = [case for path in sorted(folder.rglob("*.toml")) for case in load_file(path)]
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise CaseError(f"{case.id}: another case of this file has the same name")
        seen.add(case.id)
    return tuple(cases)


def load_file(path: Path) -> Iterator[Case]:
    """The cases of one file, those of `any` once for each interpreter.

    Raises:
        CaseError: as above.
    """
    folder = path.parent.name
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CaseError(f"{path}: {error}") from None
    top = _Table(document, str(path))
    file_spec = top.take("spec", str, "")
    entries = top.tables("case")
    top.finish()
    if not entries:
        raise CaseError(f"{path}: holds no [[case]]")
    for number, entry in enumerate(entries, 1):
        name = entry.take("name", str, "")
        if not name:
            raise CaseError(f"{path}: case {number} has no name")
        entry.where = f"{path}: {name!r}"
        spec = entry.take("spec", str, file_spec)
        if not spec:
            raise CaseError(f"{entry.where}: says by no `spec` what it checks")
        needs = frozenset(entry.texts("needs"))
        if not needs <= NEEDS:
            raise CaseError(f"{entry.where}: needs {sorted(needs - NEEDS)}, known: {sorted(NEEDS)}")
        modules = entry.texts("modules")
        steps = entry.tables("step")
        if steps:
            entry.finish()
        else:  # a case of one step needs no table for it
            steps = [entry]
        languages = cast("tuple[Language, ...]", LANGUAGES if folder == "any" else (folder,))
        given = steps[0].languages_of_code()
        for language in languages:
            if given is None or language in given:
                yield Case(
                    file=f"{folder}/{path.stem}",
                    name=name,
                    spec=spec,
                    language=language,
                    needs=needs,
                    modules=modules,
                    steps=tuple(_step(step.copy(), language) for step in steps),
                )


def _step(table: _Table, language: Language) -> Step:
    """One step, with what stands in tables by language chosen for this one."""
    values: dict[str, Any] = {"code": _code(table.by_language("code", language), table.where)}
    own = table.take("language", str, None)
    if own is not None:
        if own not in LANGUAGES:
            raise CaseError(f"{table.where}: language {own!r} is none of {', '.join(LANGUAGES)}")
        values["language"] = own
    timeout = table.take("timeout_s", (int, float), DEFAULT_TIMEOUT_S)
    values["timeout_s"] = float(timeout)
    values["interrupt_after"] = table.take("interrupt_after", str, None)
    values["reply_bytes"] = table.take("reply_bytes", int, None)
    values["probe"] = table.take("probe", str, "full")
    if values["probe"] not in PROBINGS:
        raise CaseError(f"{table.where}: probe is one of {', '.join(PROBINGS)}")
    for stream in ("stdout", "stderr"):
        for suffix in ("has", "lacks", "like"):
            key = f"{stream}_{suffix}"
            values[key] = table.texts_by_language(key, language)
        for pattern in values[f"{stream}_like"]:
            try:
                re.compile(pattern)
            except re.error as error:
                raise CaseError(f"{table.where}: {stream}_like {pattern!r}: {error}") from None
        judged_otherwise = values[f"{stream}_has"] or values[f"{stream}_like"]
        exact = table.by_language(stream, language) if stream in table else None
        if exact is not None:
            values[stream] = _code(exact, table.where)
            if judged_otherwise:
                raise CaseError(f"{table.where}: has an exact {stream} and {stream}_has or _like")
        else:
            values[stream] = None if judged_otherwise else ""
    if "exit_code" in table:
        values["exit_code"] = _exit_codes(table.by_language("exit_code", language), table.where)
    if "displays" in table:
        values["displays"] = _displays(table.by_language("displays", language), table.where)
    for flag in ("timed_out", "interrupted", "restarted", "refused"):
        if flag in table:
            value = table.by_language(flag, language)
            if value != "either" and not isinstance(value, bool):
                raise CaseError(f'{table.where}: {flag} is true, false or "either"')
            values[flag] = value
    values["reason_has"] = table.take("reason_has", str, "")
    values["truncated"] = table.texts("truncated")
    if values["truncated"] == ("any",):
        values["truncated"] = None
    values["may_end"] = table.take("may_end", bool, False)
    table.finish()
    assert values.keys() <= {field.name for field in fields(Step)}
    return Step(**values)


def _exit_codes(value: object, where: str) -> tuple[int, ...] | None:
    if value == "any":
        return None
    found = cast("list[object]", value if isinstance(value, list) else [value])
    if not found or any(isinstance(code, bool) or not isinstance(code, int) for code in found):
        raise CaseError(f'{where}: exit_code is a number, a list of numbers or "any"')
    return tuple(cast("list[int]", found))


def _displays(value: object, where: str) -> tuple[Mapping[str, Any], ...] | None:
    if value == "any":
        return None
    found: list[Mapping[str, Any]] = []
    for entry in cast("list[object]", value if isinstance(value, list) else [0]):
        if isinstance(entry, str):
            found.append({"text/plain": entry})
        elif isinstance(entry, dict):
            found.append(cast("dict[str, Any]", entry))
        else:
            raise CaseError(f'{where}: displays is "any" or a list of texts and of tables by MIME')
    return tuple(found)


def _code(value: object, where: str) -> str:
    """Text, or pieces of it: what TOML cannot hold, and what is too long to write down."""
    if isinstance(value, str):
        return value
    pieces: list[str] = []
    for piece in cast("list[object]", value if isinstance(value, list) else [0]):
        if isinstance(piece, str):
            pieces.append(piece)
            continue
        if not isinstance(piece, dict):
            raise CaseError(f"{where}: text is a string, or a list of strings and of pieces")
        table = _Table(cast("dict[str, Any]", piece), f"{where}, a piece of text")
        times = table.take("times", int, 1)
        char = table.take("char", int, None)
        text = table.take("text", str, "") if char is None else chr(char)
        table.finish()
        pieces.append(text * times)
    return "".join(pieces)


class _Table:
    """A TOML table whose keys are taken one by one; what is left at the end is a mistake."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = dict(values)
        self._known: set[str] = set()
        self.where = where

    def __contains__(self, key: str) -> bool:
        self._known.add(key)
        return key in self._values

    def copy(self) -> _Table:
        fresh = _Table(self._values, self.where)
        fresh._known = set(self._known)
        return fresh

    def take(self, key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        self._known.add(key)
        if key not in self._values:
            return default
        value = self._values.pop(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CaseError(f"{self.where}: {key} is {value!r}, which is of the wrong type")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """One text or a list of them."""
        self._known.add(key)
        return self._as_texts(key, self._values.pop(key, []))

    def texts_by_language(self, key: str, language: Language) -> tuple[str, ...]:
        return self._as_texts(key, self.by_language(key, language) if key in self else [])

    def _as_texts(self, key: str, value: object) -> tuple[str, ...]:
        found = [value] if isinstance(value, str) else value
        if isinstance(found, list):
            entries = cast("list[object]", found)
            if all(isinstance(entry, str) for entry in entries):
                return tuple(cast("list[str]", entries))
        raise CaseError(f"{self.where}: {key} is a text or a list of texts")

    def by_language(self, key: str, language: Language) -> Any:
        """A value, or that of this language where a table has one for each."""
        self._known.add(key)
        if key not in self._values:
            raise CaseError(f"{self.where}: has no {key}")
        value = self._values.pop(key)
        if not isinstance(value, dict):
            return value
        choices = cast("dict[str, Any]", value)
        if not choices.keys() <= set(LANGUAGES) or language not in choices:
            raise CaseError(
                f"{self.where}: {key} by language has {sorted(choices)}, wanted {language}"
            )
        return choices[language]

    def languages_of_code(self) -> Sequence[str] | None:
        """Languages in which there is code; None for any language."""
        code = self._values.get("code")
        return list(cast("dict[str, Any]", code)) if isinstance(code, dict) else None

    def tables(self, key: str) -> list[_Table]:
        self._known.add(key)
        value = self._values.pop(key, [])
        if not isinstance(value, list):
            raise CaseError(f"{self.where}: {key} is written [[{key}]]")
        entries = cast("list[dict[str, Any]]", value)
        return [_Table(entry, f"{self.where}, {key} {n}") for n, entry in enumerate(entries, 1)]

    def finish(self) -> None:
        if self._values:
            raise CaseError(
                f"{self.where}: unknown key {min(self._values)!r}; "
                f"known here: {', '.join(sorted(self._known))}"
            )
