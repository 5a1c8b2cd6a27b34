"""A configuration file's text and what it means, changed together and compared. Pure."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from nsm.setup import json_text, toml_text
from nsm.setup.agents import program_of
from nsm.setup.files import SettingsFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsm.setup.record import Edit

Table = dict[str, Any]


class Document:
    """Text of a configuration file, JSON with comments or TOML.

    Each change is made in the text and in the value that it means. `text` is the new text if it
    means that value, else an error: a file that is written in an unknown way is left as it is.
    """

    def __init__(self, path: str, content: bytes) -> None:
        self._path = path
        self._format = toml_text if path.endswith(".toml") else json_text
        try:
            self._text = content.decode()
            self._value = self._format.value_of(self._text)
        except (ValueError, RecursionError) as error:
            raise SettingsFileError(
                f"{path} is not valid, and was left as it is: {error}",
                hint="Correct it, and run the command again. Nothing was changed.",
            ) from None
        if not isinstance(self._value, dict):
            raise self._unusable("it is no object")

    def text(self) -> str:
        """The new text.

        Raises:
            SettingsFileError: it does not mean what it should.
        """
        if not self.is_meant_by(self._text):
            raise self._unusable("it is written in a way that nsm does not know")
        return self._text

    def is_meant_by(self, text: str) -> bool:
        """Tell whether a text means what this one should."""
        try:
            return bool(self._format.value_of(text) == self._value)
        except ValueError:
            return False

    def get(self, keys: Sequence[str]) -> Any:
        """The value at a place; None where there is none."""
        value: Any = self._value
        for key in keys:
            value = cast("Table", value).get(key) if isinstance(value, dict) else None
        return value

    def depth(self, keys: Sequence[str]) -> int:
        """How many of the keys, from outside, are there.

        Raises:
            SettingsFileError: something on the way is no object.
        """
        value: Any = self._value
        for depth, key in enumerate(keys):
            if not isinstance(value, dict):
                raise self._unusable(f"its {'.'.join(keys[:depth])} is no object")
            if key not in value:
                return depth
            value = cast("Table", value)[key]
        return len(keys)

    def set(self, keys: Sequence[str], value: Any) -> None:
        """Put a value at a place.

        Raises:
            SettingsFileError: something on the way is no object.
        """
        self.depth(keys)
        if self._format is toml_text:
            if isinstance(value, dict):
                for key, each in cast("Table", value).items():
                    self._text = toml_text.with_value(self._text, [*keys, key], each)
            else:
                self._text = toml_text.with_value(self._text, keys, value)
        else:
            self._text = json_text.with_value(self._text, keys, value)
        table = self._value
        for key in keys[:-1]:
            table = table.setdefault(key, {})
        table[keys[-1]] = copy.deepcopy(cast("Any", value))

    def append(self, keys: Sequence[str], item: str) -> None:
        """Put an item at the end of an array, which is made where it is missing.

        Raises:
            SettingsFileError: there is something else than an array.
        """
        items = self.get(keys)
        if self.depth(keys) < len(keys):
            self.set(keys, [item])
        elif isinstance(items, list):
            self._text = json_text.with_item(self._text, keys, item)
            cast("list[str]", items).append(item)
        else:
            raise self._unusable(f"its {'.'.join(keys)} is no array")

    def take_back(self, edit: Edit) -> None:
        """Undo an edit, if what it has put there is there still."""
        present = self.get(edit.keys)
        if edit.did == "item":
            if not isinstance(present, list) or edit.value not in present:
                return
            self._without(edit.keys, edit.value)
            if present or edit.made == len(edit.keys):
                return
            self._without(edit.keys)
        elif edit.old is not None:
            if present == edit.value:
                self.set(edit.keys, edit.old)
            return
        elif present is None or (present != edit.value and not _is_ours(present)):
            return
        else:
            self._without(edit.keys)
        # What was made around it goes, too, unless something else is in there by now.
        for depth in range(len(edit.keys) - 1, edit.made, -1):
            if self.get(edit.keys[:depth]) != {}:
                break
            self._without(edit.keys[:depth])

    def is_empty(self) -> bool:
        """Tell whether nothing is in it, not even a comment."""
        return not self._value and not self._text.strip("\ufeff \t\r\n{}")

    def _without(self, keys: Sequence[str], item: str | None = None) -> None:
        if self._format is toml_text:
            self._text = toml_text.without(self._text, keys)
        else:
            self._text = json_text.without(self._text, keys, item)
        table = self.get(keys[:-1]) if keys[:-1] else self._value
        if item is None:
            del table[keys[-1]]
        else:
            table[keys[-1]].remove(item)

    def _unusable(self, why: str) -> SettingsFileError:
        return SettingsFileError(
            f"{self._path} was left as it is: {why}",
            hint="Add nsm to it by hand. Nothing was changed.",
        )


def _is_ours(value: Any) -> bool:
    """Tell whether a server's entry starts nsm, with whatever its user has added to it."""
    return program_of(value).rpartition("/")[2] == "nsm-mcp"
