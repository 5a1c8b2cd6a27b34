"""A settings file of the user's: its text and what that means, and how it is replaced."""

from __future__ import annotations

import copy
import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from nsm import below, paths
from nsm.setup import json_text, toml_text
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsm.setup.agents import Wanted

_MAX_BYTES = 32 * 1024 * 1024
"""Claude Code's own file, with the histories of many projects, has a few MB."""

Table = dict[str, Any]


class SettingsFileError(NsmError):
    """A file can't be changed safely; none was."""

    code = "setup"


class Document:
    """Text of a configuration file, JSON with comments or TOML.

    Each change is made in the text and in the value that it means, so that `checked_text` can
    compare them: a file that is written in an unknown way is left as it is.
    """

    def __init__(self, path: str, content: bytes) -> None:
        self._path = path
        self._format = toml_text if path.endswith(".toml") else json_text
        try:
            self.text = content.decode()
            self._value = self._format.value_of(self.text)
        except (ValueError, RecursionError) as error:
            raise SettingsFileError(
                f"{path} is not valid, and was left as it is: {error}",
                hint="Correct it, and run the command again. Nothing was changed.",
            ) from None
        if not isinstance(self._value, dict):
            raise self._unusable("it is not an object")

    def checked_text(self) -> str:
        """The text, if it means what it should; else a `SettingsFileError`."""
        with suppress(ValueError):
            if self._format.value_of(self.text) == self._value:
                return self.text
        raise self._unusable("it is written in a way that nsm does not know")

    def get(self, keys: Sequence[str]) -> Any:
        """The value at a place; None where there is none."""
        value: Any = self._value
        for key in keys:
            value = cast("Table", value).get(key) if isinstance(value, dict) else None
        return value

    def has_room(self, keys: Sequence[str]) -> bool:
        """Tell whether nothing is at a place yet. What is on the way has to be objects."""
        value: Any = self._value
        for depth, key in enumerate(keys):
            if not isinstance(value, dict):
                raise self._unusable(f"its {'.'.join(keys[:depth])} is not an object")
            if key not in value:
                return True
            value = cast("Table", value)[key]
        return False

    def set(self, keys: Sequence[str], value: Any) -> None:
        """Put a value at a place. What is on the way has to be objects."""
        self.has_room(keys)
        if self._format is toml_text:
            if isinstance(value, dict):
                for key, each in cast("Table", value).items():
                    self.text = toml_text.with_value(self.text, [*keys, key], each)
            else:
                self.text = toml_text.with_value(self.text, keys, value)
        else:
            self.text = json_text.with_value(self.text, keys, value)
        table = self._value
        for key in keys[:-1]:
            table = table.setdefault(key, {})
        table[keys[-1]] = copy.deepcopy(cast("Any", value))

    def append(self, keys: Sequence[str], item: str) -> None:
        """Put an item at the end of an array, which is made where it is missing."""
        items = self.get(keys)
        if self.has_room(keys):
            self.set(keys, [item])
        elif isinstance(items, list):
            self.text = json_text.with_item(self.text, keys, item)
            cast("list[str]", items).append(item)
        else:
            raise self._unusable(f"its {'.'.join(keys)} is not an array")

    def without(self, unwanted: Sequence[Wanted]) -> Any:
        """The value without these things, and without objects and arrays around them that are empty
        then."""
        value = self._value
        for each in unwanted:
            value = _without(value, each.keys, each.value if each.kind == "item" else None)
        return value

    def _unusable(self, why: str) -> SettingsFileError:
        return SettingsFileError(
            f"{self._path} was left as it is: {why}",
            hint="Add nsm to it by hand. Nothing was changed.",
        )


def _without(value: Any, keys: Sequence[str], item: str | None) -> Any:
    if not keys:
        is_array = item is not None and isinstance(value, list)
        return [each for each in cast("list[Any]", value) if each != item] if is_array else None
    if not isinstance(value, dict) or keys[0] not in value:
        return cast("Any", value)
    rest = cast("Table", value).copy()
    rest[keys[0]] = _without(rest[keys[0]], keys[1:], item)
    if rest[keys[0]] in (None, {}, []):
        del rest[keys[0]]
    return rest


def read(path: str) -> bytes | None:
    """The content of a file; None where there is none. Links are followed.

    Raises:
        SettingsFileError: it is no regular file, or too large.
        OSError: it can't be read.
    """
    try:
        content = below.read_file(path, _MAX_BYTES + 1, links=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        hint = "Nothing was changed."
        raise SettingsFileError(f"{path} is not a regular file", hint=hint) from None
    if len(content) > _MAX_BYTES:
        raise SettingsFileError(
            f"{path} has more than {_MAX_BYTES // 1024**2} MiB", hint="Nothing was changed."
        )
    return content


def check_writable(path: str) -> None:
    """Refuse a file that is read-only: replacing it whole would need no right to write to it."""
    with suppress(FileNotFoundError):
        if not os.stat(path).st_mode & 0o222 or not os.access(path, os.W_OK):
            # Whoever made it so, NixOS for one, writes it another way.
            raise SettingsFileError(
                f"{path} is read-only, and was left as it is",
                hint="Make it writable (`chmod u+w`), or add or remove nsm where that file is made "
                "from. Nothing was changed.",
            )


def replace(path: str, content: bytes | None, expected: bytes | None) -> list[str]:
    """Replace a file, whole or not at all; remove it for None.

    The new file has the old one's mode. A link stays a link: the file that it leads to is replaced.
    A file that does not hold what is expected is left as it is, with a `SettingsFileError`.

    Returns:
        The directories that were made for it.
    """

    def check() -> None:
        if read(path) != expected:
            raise SettingsFileError(
                f"{path} has changed meanwhile, and was left as it is",
                hint="Close the program that writes it, and run the command again.",
            )

    if content is None:
        check()
        os.unlink(path)
        return []
    real = os.path.realpath(path)
    made = _make_directories(os.path.dirname(real))
    try:
        paths.replace_file(real, content, sync=True, keep_mode=True, check=check)
    except BaseException:
        remove_empty(made)
        raise
    return made


def remove_empty(directories: Sequence[str]) -> None:
    """Remove directories, the innermost first, that have nothing in them."""
    for directory in reversed(directories):
        with suppress(OSError):
            os.rmdir(directory)


def _make_directories(directory: str) -> list[str]:
    missing: list[str] = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    missing.reverse()
    for each in missing:
        os.mkdir(each, 0o700)
    return missing
