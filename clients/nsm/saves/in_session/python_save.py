"""Write the state of a Python session into files."""

# Checked less strictly: the state may be anything, and cloudpickle is loaded from a file.
# pyright: basic

from __future__ import annotations

import ast
import contextlib
import errno
import io
import json
import os
import pickle
import select
import signal
import sys
import time
import types
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nsm.saves.in_session.python_common import (
        installed_packages,
        load_module,
        main_dict,
        words,
        write_json,
    )

FORMAT = 1

CHILDREN = 10
"""Processes that are tried, one after another, where variables end the one that pickles them."""

GRACE_S = 2.0
"""Time for a variable's own limit to work before its process is ended."""

MAX_WHY = 300
"""Characters of a reason."""

_ATOMS = {int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range}

_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


class TooSlow(BaseException):
    """A variable takes longer than it may."""


def save(directory: str) -> None:
    """Write the state of this interpreter into a directory.

    A forked child does it, so that this process goes on as it was, whatever pickling does.

    Raises:
        RuntimeError: it cannot be written.
    """
    with open(f"{directory}/options.json", encoding="utf-8") as file:
        options: dict[str, Any] = json.load(file)
    end = time.monotonic() + options["seconds"]
    _flush_files()
    left_out: dict[str, str] = {}
    for _ in range(CHILDREN):
        if not _save_in_child(directory, options, left_out, end):
            return
    raise RuntimeError("too many variables end the process that pickles them")


def _flush_files() -> None:
    for value in list(main_dict().values()):
        if type(value) in _FILES:
            with contextlib.suppress(OSError, ValueError):  # closed, or its disk is full
                value.flush()


def _save_in_child(
    directory: str, options: dict[str, Any], left_out: dict[str, str], end: float
) -> bool:
    """Have a child write the state; returns True if another child must try again."""
    for name in os.listdir(directory):
        if name.endswith(".pickle"):
            os.unlink(f"{directory}/{name}")  # of the child before
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads do not matter: it only reads
        child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _become_child()
            _Saver(directory, options, left_out, writing).save()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    try:
        name, said = _watch(reading, options["variable_s"] + GRACE_S, end)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    if said == "done":
        return False
    if said.startswith("failed "):
        raise RuntimeError(said[7:])
    if time.monotonic() >= end:
        raise RuntimeError(f"there was no time left at {name!r}; give it more by --timeout")
    if not name:
        raise RuntimeError(f"the process that pickles ended with status {status}")
    left_out[name] = "it took too long" if said == "late" else "pickling it ended the process"
    return True


def _watch(reading: int, longest_s: float, end: float) -> tuple[str, str]:
    """Read what the child reports; returns the name it was at, and its last word."""
    name, data = "", b""
    while True:
        left = min(longest_s, end - time.monotonic())
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return name, "late"
        piece = os.read(reading, 65536)
        if not piece:
            return name, "ended"
        data += piece
        *lines, data = data.split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "at":
                name = rest
            else:
                return name, word if not rest else f"{word} {rest}"


def _become_child() -> None:
    import gc

    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")  # if memory runs out, this one is to go
    except OSError:
        pass


class _Saver:
    """Writes the state of this process.

    Args:
        left_out: names of variables that are not to be touched, and why.
        told: descriptor for progress.
    """

    def __init__(
        self, directory: str, options: dict[str, Any], left_out: dict[str, str], told: int
    ) -> None:
        self._directory = directory
        self._options = options
        self._left_out = left_out
        self._told = told
        self._parts = 0
        self._failed: list[dict[str, Any]] = []
        self._sources: _Sources | None = None

    def save(self) -> None:
        try:
            state = self._state()
            write_json(f"{self._directory}/state.json", state)
        except OSError as error:
            self._tell(f"failed {error}")
        else:
            self._tell("done")

    def _tell(self, text: str) -> None:
        os.write(self._told, text.replace("\n", " ").encode("utf-8", "replace") + b"\n")

    def _state(self) -> dict[str, Any]:
        main = main_dict()
        imports, known, variables = {}, {}, {}
        for name, value in list(main.items()):
            if type(name) is not str or (name.startswith("__") and name.endswith("__")):
                continue
            if type(value) is types.ModuleType:
                imports[name] = value.__name__
            elif type(value).__name__ == "_Feature":
                again = f"from __future__ import {name}"
                self._fail(name, "it changes how later code is compiled, and is not a value", again)
            elif _is_definition(name, value):
                known[name] = value
            else:
                variables[name] = value
        cloudpickle = load_module("_nsm_cloudpickle", f"{self._directory}/cloudpickle.py")
        pickler = _pickler_class(cloudpickle, main, {id(v): n for n, v in known.items()})
        signal.signal(signal.SIGALRM, _on_alarm)
        definitions = [self._define(name, value, pickler) for name, value in known.items()]
        groups = self._groups(variables, pickler)
        return {
            "format": FORMAT,
            "version": ".".join(map(str, sys.version_info[:3])),
            "tag": sys.implementation.cache_tag,
            "cwd": _cwd(),
            "environ": {
                name: value
                for name, value in os.environ.items()
                if name not in self._options["not_saved"]
            },
            "path": [path for path in sys.path if isinstance(path, str)],
            "packages": installed_packages(),
            "imports": imports,
            "definitions": [each for each in definitions if each is not None],
            "groups": groups,
            "failed": self._failed,
        }

    def _fail(self, name: str, why: str, again: str | None = None) -> None:
        if again is None:
            again = self._source_of(name, assigned=True)
        self._failed.append({"name": name, "why": why[:MAX_WHY], "again": again})

    def _source_of(self, name: str, *, assigned: bool) -> str | None:
        if self._sources is None:
            self._sources = _Sources()
        found = self._sources.assigned if assigned else self._sources.defined
        return found.get(name)

    def _define(self, name: str, value: Any, pickler: Any) -> dict[str, Any] | None:
        source = self._source_of(name, assigned=False)
        part, why = None, "its source is not known"
        if isinstance(value, (type, types.FunctionType)):
            part, why, _, _ = self._pickle(name, {name: value}, pickler, root=value)
        if part is None and source is None:
            self._fail(name, why)
            return None
        return {"name": name, "part": part, "source": source}

    def _groups(self, variables: dict[str, Any], pickler: Any) -> list[dict[str, Any]]:
        """Pickle each variable, and together those that share objects."""
        owners: dict[int, str] = {}
        leaders = {name: name for name in variables}
        alone: dict[str, tuple[int, bool]] = {}
        kept: list[Any] = []  # what has an id is to keep it

        def leader(name: str) -> str:
            while leaders[name] != name:
                name = leaders[name]
            return name

        for name, value in variables.items():
            part, why, seen, has_code = self._pickle(name, {name: value}, pickler)
            if part is None:
                self._fail(name, why)
                continue
            alone[name] = part, has_code
            kept.append(seen)
            for number in seen:
                leaders[leader(name)] = leader(owners.setdefault(number, name))
        members: dict[str, list[str]] = {}
        for name in alone:
            members.setdefault(leader(name), []).append(name)
        groups = []
        for names in members.values():
            part, has_code = alone[names[0]]
            shares: int | None = part
            if len(names) > 1:
                has_code = any(alone[name][1] for name in names)
                values = {name: variables[name] for name in names}
                shares, _, _, _ = self._pickle(names[0], values, pickler)
            if shares is None:  # together they cannot: better alone than not at all
                groups += [
                    {"names": [name], "part": alone[name][0], "code": alone[name][1]}
                    for name in names
                ]
                continue
            if len(names) > 1:
                for name in names:
                    os.unlink(self._path(alone[name][0]))
            groups.append({"names": names, "part": shares, "code": has_code})
        return groups

    def _path(self, part: int) -> str:
        return f"{self._directory}/{part:06}.pickle"

    def _pickle(
        self, name: str, values: dict[str, Any], pickler: Any, root: Any = None
    ) -> tuple[int | None, str, dict[int, Any], bool]:
        """Write values into a file of their own.

        Returns:
            Its number, or None and why it could not be written; the objects that could be shared;
            whether there is code in it.
        """
        self._tell(f"at {name}")
        if name in self._left_out:
            return None, self._left_out[name], {}, False
        self._parts += 1
        path, why = self._path(self._parts), ""
        writer = None
        try:
            signal.setitimer(signal.ITIMER_REAL, self._options["variable_s"])
            try:
                with open(path, "xb") as file:
                    writer = pickler(file, root)
                    writer.dump(values)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except TooSlow:
            why = f"it took longer than {self._options['variable_s']:g} s"
        except BaseException as error:  # whatever a variable does
            why = words(error)
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                why = "there is no room for its pickle in the session's /tmp (`tmp_mb`)"
        if why or writer is None:
            os.unlink(path)
            return None, why, {}, False
        return self._parts, "", writer.seen, writer.has_code


def _is_definition(name: str, value: Any) -> bool:
    """Tell whether a value is the function or class that was defined under this name."""
    if not callable(value):
        return False
    try:
        return bool(value.__module__ == "__main__" and value.__qualname__ == name)
    except Exception:
        return False


def _pickler_class(cloudpickle: Any, main: dict[str, Any], known: dict[int, str]) -> Any:
    """Make the pickler: cloudpickle's, in which functions stay in `__main__`.

    Args:
        known: names of the definitions of `__main__` by id. They are pickled by name, except for
            the root.
    """

    common = _lists_of_pandas()

    class StatePickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Pickler of variables.

        Attributes:
            seen: objects that another variable may share, by id.
        """

        def __init__(self, file: Any, root: Any) -> None:
            super().__init__(file, protocol=5)
            self.seen: dict[int, Any] = {}
            self.has_code = False
            self._root = root

        def persistent_id(self, obj: Any) -> Any:
            kind = type(obj)
            if kind in _ATOMS or kind is tuple:
                return None
            if obj is main:
                return "main"
            name = known.get(id(obj))
            if name is not None and obj is not self._root:
                return ("name", name)
            if kind is types.CodeType:
                self.has_code = True
            elif _can_be_shared(obj, kind) and id(obj) not in common:
                self.seen[id(obj)] = obj
            return None

        def _dynamic_function_reduce(self, func: Any) -> Any:
            reduced = super()._dynamic_function_reduce(func)
            if func.__globals__ is not main:
                return reduced
            make, (code, _, *rest), (state, slots), *others = reduced
            slots["__globals__"] = {}  # it finds them where it is
            return (make, (code, main, *rest), (state, slots), *others)

        def reducer_override(self, obj: Any) -> Any:
            if type(obj) in _FILES:
                return _reduce_file(obj)
            return super().reducer_override(obj)

    return StatePickler


def _can_be_shared(obj: Any, kind: type) -> bool:
    """Tell whether it matters that two variables have one object rather than equal ones."""
    if issubclass(kind, type) or kind is types.ModuleType:
        return False
    if callable(obj) and _has_a_name(obj):
        return False
    hashing = kind.__hash__
    if hashing is None or hashing is object.__hash__:
        return True
    try:
        found = hash(obj)
    except Exception:
        return True
    return bool(found in (object.__hash__(obj), id(obj)))  # a value's hash would be another


def _has_a_name(function: Any) -> bool:
    """Tell whether a function is found by its name in a module, so that it is pickled by that."""
    try:
        found = sys.modules[function.__module__]
        for name in function.__qualname__.split("."):
            found = getattr(found, name)
    except Exception:
        return False
    return found is function


def _lists_of_pandas() -> set[int]:
    """Ids of the lists that all frames of pandas have in common, which nobody changes."""
    pandas = sys.modules.get("pandas")
    kinds = (getattr(pandas, name, None) for name in ("DataFrame", "Series"))
    return {id(getattr(kind, "_metadata", None)) for kind in kinds}


def _reduce_file(file: Any) -> Any:
    """Reduce an open file to its path and its place in it."""
    # Not `file.name`, which may be relative to a directory where the session was before.
    path = "" if isinstance(file.name, int) else os.readlink(f"/proc/self/fd/{file.fileno()}")
    if not os.path.isfile(path):
        raise pickle.PicklingError("an open file that has no path any more")
    mode = file.mode.replace("w", "r+").replace("x", "r+").replace("++", "+")
    text = isinstance(file, io.TextIOWrapper)
    buffering = 0 if isinstance(file, io.FileIO) else -1
    how = (path, mode, buffering, *((file.encoding, file.errors) if text else ()))
    opened = type(file)  # what `open` makes of `how`
    if opened is io.BufferedWriter and "+" in mode:
        opened = io.BufferedRandom
    return open, how, file.tell(), None, None, opened.seek


class _Sources:
    """Source of what executions have made at their top level.

    Attributes:
        defined: text of the last definition of a name.
        assigned: text of the last execution that assigned a name.
    """

    def __init__(self) -> None:
        import linecache

        self.defined: dict[str, str] = {}
        self.assigned: dict[str, str] = {}
        executions = []
        for name, entry in list(linecache.cache.items()):
            number = name[6:-1]
            if name.startswith("<exec ") and number.isdecimal() and len(entry) == 4:
                executions.append((int(number), list(entry[2])))
        for _, lines in sorted(executions):
            try:
                tree = ast.parse("".join(lines))
            except (SyntaxError, ValueError, RecursionError):
                continue
            for node in tree.body:
                self._note(node, lines)

    def _note(self, node: ast.stmt, lines: list[str]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            self.defined[node.name] = "".join(lines[first - 1 : node.end_lineno])
            return
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                self.assigned[each.id] = "".join(lines)


def _on_alarm(*_: object) -> None:
    raise TooSlow


def _cwd() -> str:
    with contextlib.suppress(OSError):
        return os.getcwd()
    return "/workspace"
