"""Restore the state of a Python session from files."""

# Checked less strictly: the state may be anything.
# pyright: basic

from __future__ import annotations

import json
import os
import pickle
import sys

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

MAX_WHY = 300
"""Characters of a reason."""

MAX_PACKAGES = 10
"""Packages of other versions that are told."""


class MissingError(pickle.UnpicklingError):
    """Something needs a definition that is not there, or not yet."""


def restore(directory: str) -> None:
    """Restore the state in a directory, and write there what came of each thing."""
    with open(f"{directory}/state.json", encoding="utf-8") as file:
        state: dict[str, Any] = json.load(file)
    rows: list[dict[str, Any]] = []
    _Loader(directory, state, rows).load()
    report = {
        "version": ".".join(map(str, sys.version_info[:3])),
        "packages": _differing_packages(state.get("packages", {})),
        "rows": rows,
    }
    write_json(f"{directory}/report.json", report)


def _differing_packages(saved: dict[str, str]) -> list[str]:
    """Tell which packages are of another version than in the saved session, or missing."""
    here = installed_packages()
    told = [
        f"package {name}: {version} when it was saved, "
        + (f"{here[name]} here" if name in here else "missing here")
        for name, version in sorted(saved.items())
        if here.get(name) != version
    ]
    if len(told) > MAX_PACKAGES:
        told[MAX_PACKAGES:] = [f"and {len(told) - MAX_PACKAGES} more packages"]
    return told


class _Loader:
    """Loader of saved state. It adds what came of each thing to `rows`."""

    def __init__(self, directory: str, state: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        self._directory = directory
        self._state = state
        self._rows = rows
        self._main = main_dict()
        self._is_same = state["tag"] == sys.implementation.cache_tag

    def load(self) -> None:
        state, main = self._state, self._main
        load_module("_nsm_cloudpickle", f"{self._directory}/cloudpickle.py")
        os.environ.update(state["environ"])
        sys.path += [path for path in state["path"] if path not in sys.path]
        try:
            os.chdir(state["cwd"])
        except OSError as error:
            self._tell("the working directory", "directory", words(error))
        for name, module in state["imports"].items():
            self._import(name, module)
        self._load_all()
        for each in state["failed"]:
            self._tell(each["name"], "variable", each["why"], each["again"])
        import builtins

        main["__builtins__"] = builtins
        for name in ("_nsm_cloudpickle", "_nsm_state"):
            sys.modules.pop(name, None)

    def _tell(self, name: str, kind: str, why: str = "", again: str | None = None) -> None:
        row = {"name": name, "kind": kind, "why": why[:MAX_WHY], "again": again}
        self._rows.append(row)

    def _import(self, name: str, module: str) -> None:
        import importlib

        try:
            self._main[name] = importlib.import_module(module)
        except BaseException as error:
            self._tell(name, "import", words(error))
        else:
            self._tell(name, "import")

    def _load_all(self) -> None:
        """Load definitions and variables, each when there is what it needs."""
        pending = [("definition", each) for each in self._state["definitions"]]
        pending += [("variable", each) for each in self._state["groups"]]
        final = False
        while pending:
            left = []
            for kind, each in pending:
                names = [each["name"]] if kind == "definition" else each["names"]
                try:
                    if kind == "definition":
                        self._define(each)
                    else:
                        self._load_group(each)
                except (MissingError, NameError) as error:
                    if not final:
                        left.append((kind, each))
                        continue
                    why = words(error)
                except BaseException as error:
                    why = words(error)
                else:
                    why = ""
                for name in names:
                    self._tell(name, kind, why)
            final = len(left) == len(pending)
            pending = left

    def _define(self, definition: dict[str, Any]) -> None:
        part, source = definition["part"], definition["source"]
        if part is not None and self._is_same:
            try:
                self._main.update(self._read(part))
            except MissingError:
                raise
            except BaseException:
                if source is None:
                    raise
            else:
                return
        if source is None:
            raise pickle.UnpicklingError(f"its code is of Python {self._state['version']}")
        name = definition["name"]
        exec(compile(source, f"<saved {name}>", "exec", dont_inherit=True), self._main)

    def _load_group(self, group: dict[str, Any]) -> None:
        if group["code"] and not self._is_same:
            raise pickle.UnpicklingError(f"it has code of Python {self._state['version']} in it")
        self._main.update(self._read(group["part"]))

    def _read(self, part: int) -> dict[str, Any]:
        main = self._main

        class StateUnpickler(pickle.Unpickler):
            """Unpickler that knows `__main__` and what is defined in it."""

            def persistent_load(self, pid: Any) -> Any:
                if pid == "main":
                    return main
                if pid[1] not in main:
                    raise MissingError(f"it needs {pid[1]}, which is not there")
                return main[pid[1]]

        path = f"{self._directory}/{part:06}.pickle"
        with open(path, "rb") as file:
            found: dict[str, Any] = StateUnpickler(file).load()
        os.unlink(path)  # it is in memory, too
        return found
