"""`[box]` of `config.toml`: what boxes are like that nothing else is said of.

Read without pydantic, which takes longer to load than a box to start. The supervisor checks the
same keys with its own schema (`nsmd.model.settings.BoxDefaults`); a test compares the two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

from nsm import paths
from nsm.dataclass import dataclass, field
from nsmbox.model.plan import BOUNDS, CPU_WEIGHT, DESCRIPTORS, PROCESSES, BoxError, Network

MAX_CONFIG_BYTES = 1024 * 1024
MAX_HOSTS = 256
MAX_PATHS = 256
MAX_PROGRAMS = 64
MAX_SECRETS = 16
MAX_VARIABLES = 256
MAX_NAME_CHARS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSettings:
    """`[box]`.

    Attributes:
        net: network of boxes: `"off"`, `"full"`, or a list of hosts.
        profile: default profile of `nsm box`; `claudebox` has its own.
        show: paths of HOME that the profile `safe` shows, read-only; absolute.
        add: directories that boxes show besides, as `--add` names them; absolute, or below `~`.
        hide: paths that boxes do not show, as `--hide` names them.
        persist: directories below HOME that boxes of one project keep; relative to HOME.
        env: names of the caller's variables that pass, as `CLAUDEBOX_EXTRA_ENV` has them.
        memory_mb, home_mb, tmp_mb, shm_mb, cpu_weight, processes, descriptors: limits of each box
            (`nsmbox.model.plan`); None for what suits this machine.
    """

    net: Network = field(default_factory=Network)
    profile: str | None = None
    protect: bool = True
    protect_paths: tuple[str, ...] = ()
    unprotect: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    bridge: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    persist: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    memory_mb: int | None = None
    home_mb: int | None = None
    tmp_mb: int | None = None
    shm_mb: int | None = None
    cpu_weight: int = CPU_WEIGHT
    processes: int = PROCESSES
    descriptors: int = DESCRIPTORS

    @property
    def limits(self) -> Mapping[str, int | None]:
        """Limits by name."""
        return {name: getattr(self, name) for name in BOUNDS}


def load(path: str | None = None) -> BoxSettings:
    """The settings of the user's `config.toml`, or of another file; defaults if there is none."""
    path = os.path.join(paths.config_dir(), "config.toml") if path is None else path
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return BoxSettings()
    except OSError as error:
        raise _mistake(path, f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise _mistake(path, f"is larger than {MAX_CONFIG_BYTES} bytes")
    return parse(data, path)


def parse(data: bytes, path: str) -> BoxSettings:
    """The settings in the content of a file; `path` is its name, for messages."""
    if b"box" not in data:  # most files; a parser of TOML takes 10 ms to load
        return BoxSettings()
    import tomllib  # noqa: PLC0415

    try:
        table = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise _mistake(path, f"is not UTF-8 text (byte {error.start})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _mistake(path, f"is not valid TOML: {error}") from error
    given: object = table.get("box", {})
    if not isinstance(given, dict):
        raise _mistake(path, f"box: found {given!r:.80}, expected a table [box]")
    try:
        return _settings(cast("dict[str, object]", given))
    except _WrongValueError as wrong:
        raise _mistake(path, str(wrong)) from None


class _WrongValueError(ValueError):
    """The value of a key is wrong; the message is for people."""


def _mistake(path: str, what: str) -> BoxError:
    return BoxError(
        f"{path}: {what}",
        hint="Correct it; `nsm config check` says all that is wrong with the file.",
        exit_code=2,
    )


def _settings(given: dict[str, object]) -> BoxSettings:
    known = list(BoxSettings.__annotations__)
    for key in given:
        if key not in known:
            raise _WrongValueError(f"box.{key}: unknown key. Known here: {', '.join(known)}")
    default = BoxSettings()
    profile = given.get("profile", default.profile)
    if profile is not None and not (isinstance(profile, str) and profile):
        raise _WrongValueError(f"box.profile: found {profile!r:.80}, expected a profile's name")
    protect = given.get("protect", default.protect)
    if not isinstance(protect, bool):
        raise _WrongValueError(f"box.protect: found {protect!r:.80}, expected true or false")
    return BoxSettings(
        net=_network(given["net"]) if "net" in given else default.net,
        profile=profile,
        protect=protect,
        protect_paths=_relative(given, "protect_paths"),
        unprotect=_relative(given, "unprotect"),
        show=tuple(_absolute("show", path) for path in _texts(given, "show", MAX_PATHS)),
        bridge=tuple(map(_program, _texts(given, "bridge", MAX_PROGRAMS))),
        secrets=tuple(map(_secret, _texts(given, "secrets", MAX_SECRETS))),
        add=tuple(_absolute("add", path) for path in _texts(given, "add", MAX_PATHS)),
        hide=_texts(given, "hide", MAX_PATHS),
        persist=tuple(map(_below_home, _texts(given, "persist", MAX_PATHS))),
        env=tuple(map(_variable, _texts(given, "env", MAX_VARIABLES))),
        **{name: _limit(name, given[name]) for name in BOUNDS if name in given},
    )


def _limit(name: str, value: object) -> int:
    least, most = BOUNDS[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _WrongValueError(
            f"box.{name}: found {value!r:.80}, expected a number from {least} to {most}"
        )
    return value


def _network(value: object) -> Network:
    # "host", "none" and { allow = [...] } are the older spellings.
    intercept = False
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        intercept = table.get("intercept") is True
        if table.keys() - {"intercept"} == {"allow"} and table.get("intercept", False) in (0, 1):
            value = table["allow"]
    if value in ("full", "host"):
        return Network()
    if value in ("off", "none"):
        return Network(mode="none")
    if isinstance(value, list):
        allow = _texts({"net": cast("object", value)}, "net", MAX_HOSTS)
        if intercept:
            from nsm.wire.inspection import read_all_requests  # noqa: PLC0415  # few boxes do

            allow = tuple(map(read_all_requests, allow))
        return Network(mode="allow", allow=allow)
    raise _WrongValueError(
        f'box.net: found {value!r:.80}, expected "off", "full" or a list of hosts'
    )


def _texts(given: dict[str, object], key: str, at_most: int) -> tuple[str, ...]:
    found: object = given.get(key, [])
    values = cast("list[object]", found) if isinstance(found, list) else [None]
    texts = [value for value in values if isinstance(value, str) and value and "\0" not in value]
    if len(texts) < len(values):
        raise _WrongValueError(
            f"box.{key}: found {found!r:.80}, expected a list of texts that are not empty"
        )
    if len(texts) > at_most:
        raise _WrongValueError(f"box.{key}: has {len(texts)}, expected at most {at_most}")
    return tuple(texts)


def is_program_name(text: str) -> bool:
    """Return whether the bridge can have a program of this name."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    return (
        0 < len(text) <= MAX_NAME_CHARS
        and text[0] in letters
        and not set(text) - set(f"{letters}_-")
    )


def _program(name: str) -> str:
    if not is_program_name(name):
        raise _WrongValueError(
            f"box.bridge: found {name!r:.80}, expected names of the bridge's programs: a to z, 0 "
            f"to 9, - and _, at most {MAX_NAME_CHARS} characters"
        )
    return name


def _secret(name: str) -> str:
    if not is_program_name(name):
        raise _WrongValueError(f"box.secrets: found {name!r:.80}, expected names of secrets")
    return name


def _relative(given: dict[str, object], key: str) -> tuple[str, ...]:
    found = _texts(given, key, MAX_PATHS)
    for path in found:
        if os.path.isabs(path) or ".." in path.split("/"):
            raise _WrongValueError(
                f"box.{key}: found {path!r:.80}, expected a path inside the working directory"
            )
    return found


def _absolute(key: str, path: str) -> str:
    expanded = os.path.expanduser(path)
    if not expanded.startswith("/"):
        raise _WrongValueError(
            f"box.{key}: found {path!r:.80}, expected an absolute path, or one below ~"
        )
    return expanded


def _below_home(path: str) -> str:
    parts = path.split("/")
    if parts[0] != "~" or not set(parts).isdisjoint(("..", ".")) or not any(parts[1:]):
        raise _WrongValueError(f"box.persist: found {path!r:.80}, expected a directory below ~/")
    return "/".join(filter(None, parts[1:]))


def is_variable_name(text: str) -> bool:
    """Return whether a variable of a shell can have this name."""
    return text.isidentifier() and text.isascii()


def _variable(text: str) -> str:
    if not is_variable_name(text):
        # The text is not shown: it may be NAME=SECRET.
        raise _WrongValueError("box.env: found something that is not a variable name")
    return text
