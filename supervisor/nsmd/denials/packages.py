"""Sentences about missing packages: the environments that have them, and how the user adds them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from nsmd.denials.evidence import Kind
from nsmd.denials.naming import names, plain
from nsmd.model.packages import WELL_KNOWN, module_of, package_of
from nsmd.model.values import Environment, Interpreter

_PACKAGE = re.compile(r"(?:@[\w.-]+/)?[A-Za-z0-9][\w.-]{0,60}", re.ASCII)
"""Names that may stand in a command."""

_MOST_IN_COMMAND = 4


def clauses(
    subjects: Mapping[Kind, Sequence[str]],
    environments: Sequence[Environment],
    *,
    here: Environment | None = None,
    installable: bool,
) -> list[str]:
    """Make the clauses of the note; none if there may be another cause.

    Args:
        subjects: subjects of the evidence.
        environments: environments that the client can use.
        here: environment of the session; None for one with the host's programs.
        installable: code may get it over a network.
    """
    modules = [module_of(name) for name in subjects.get("index", ())]
    modules += [
        name
        for name in subjects.get("module", ())
        # Another one may belong to the project and be elsewhere.
        if name in WELL_KNOWN or _with(name, "python", environments)
    ]
    python = list(dict.fromkeys(name for name in modules if name))
    node = list(dict.fromkeys((*subjects.get("npm", ()), *subjects.get("node-module", ()))))
    said = [
        *_where(python, "python", environments),
        *_where([name for name in node if name], "node", environments),
    ]
    if installable:
        return said if {"module", "node-module"} & subjects.keys() else []
    how: list[str] = []
    if "index" in subjects or python:
        packages = (*filter(None, subjects.get("index", ())), *map(package_of, python))
        how.append(_adding("pip", {module_of(name): name for name in reversed(packages)}.values()))
        if python and environments and not said:
            said.append(f"no environment is known to have {names(python)}")
    if "npm" in subjects or "node-module" in subjects:
        how.append(f"{_adding('npm', node)}, or install it in the project's node_modules")
    if "apt" in subjects:
        how.append(_installing_with_apt(here))
    return ["network is off, so nothing can be installed", *said, *how] if how else []


def _adding(option: str, packages: Iterable[str]) -> str:
    """Say how the user adds an environment that has these packages."""
    wanted = sorted(name for name in packages if _PACKAGE.fullmatch(name))
    words = " ".join(wanted[:_MOST_IN_COMMAND]) or "PACKAGES"
    words = f'"{words}"' if " " in words else words
    return f"the user can add an environment: `nsm env add NAME --{option} {words}`"


def _installing_with_apt(here: Environment | None) -> str:
    if here is not None and here.image is not None:
        return (
            "the system's packages are those of the environment's image: the user can build one "
            "that has more, and add it with `nsm env add NAME --image IMAGE`"
        )
    if here is not None and here.artifact is not None:
        return "Nix made this environment: the user can add packages to its flake"
    return "the user can install packages on the host, whose /usr is shown here"


def _where(
    wanted: Sequence[str], language: Interpreter, environments: Sequence[Environment]
) -> list[str]:
    """Say which environments have which of these modules."""
    having = {name: _with(name, language, environments) for name in wanted}
    return [
        f"{plain(name)} is in environment{'s' if len(there) > 1 else ''} {names(there)}"
        for name, there in having.items()
        if there
    ]


def _with(name: str, language: Interpreter, environments: Sequence[Environment]) -> list[str]:
    return [
        environment.name
        for environment in environments
        if environment.problem is None
        and environment.interpreter == language
        and environment.has_module(name)
    ]
