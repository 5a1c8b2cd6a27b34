"""Kinds of boxes. Each is a file in this directory, and needs no code."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from typing import Any

from nsm.dataclass import dataclass
from nsmbox.model.plan import BoxError

_DIRECTORY = os.path.dirname(__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDirectory:
    """A directory of HOME that boxes of a profile keep, made where it is absent."""

    host: str
    box: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesFile:
    """A file by which the agent reads the rules of its box.

    Attributes:
        file: absolute, in the box; the agent's configuration of the whole system.
        text: its content; `{text}` stands for the rules, `{json}` for them as a JSON text.
    """

    file: str
    text: str = "{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of box.

    Attributes:
        program: program that runs with the arguments; empty if the whole command is given.
        arguments: go before the user's.
        root: why it is not for root; empty where the general reason is all.
        set: variables of the box; `{home}` in them stands for HOME.
        tools: names of programs that are looked for outside of the system.
        shows_listed: it also shows the paths that the configuration lists.
        show: paths below HOME that are shown, read-only, where they exist.
        mcp: whose configuration is given an entry for `nsm-mcp`: one of `nsmbox.host.mcp.KINDS`, or
            nobody's.
    """

    name: str
    about: str
    program: str = ""
    arguments: tuple[str, ...] = ()
    install: str = ""
    root: str = ""
    variables: tuple[str, ...] = ()
    set: Mapping[str, str]
    state: tuple[StateDirectory, ...] = ()
    tools: tuple[str, ...] = ()
    shows_listed: bool = False
    show: tuple[str, ...] = ()
    mcp: str = ""
    rules: tuple[RulesFile, ...] = ()


def names() -> tuple[str, ...]:
    """All profiles, sorted."""
    return tuple(
        sorted(
            name.removesuffix(".toml")
            for name in os.listdir(_DIRECTORY)
            if name.endswith(".toml") and not name.startswith("_")
        )
    )


def load(name: str) -> Profile:
    """One profile; what all have in common, from `_common.toml`, is in it."""
    if name not in names():
        raise BoxError(
            f"there is no profile {name!r}",
            hint=f"The profiles are {', '.join(names())}.",
            exit_code=2,
        )
    common, own = _read("_common"), _read(name)
    values: dict[str, Any] = {
        **own,
        **{key: tuple(own.get(key, ())) for key in ("arguments", "show")},
    }
    values["variables"] = (*common["variables"], *own.get("variables", ()))
    values["set"] = {**common["set"], **own.get("set", {})}
    values["tools"] = (*common["tools"], *own.get("tools", ()))
    values["state"] = tuple(StateDirectory(**state) for state in own.get("state", ()))
    values["rules"] = tuple(RulesFile(**rules) for rules in own.get("rules", ()))
    return Profile(name=name, **values)


def _read(name: str) -> dict[str, Any]:
    with open(os.path.join(_DIRECTORY, f"{name}.toml"), "rb") as file:
        return tomllib.load(file)
