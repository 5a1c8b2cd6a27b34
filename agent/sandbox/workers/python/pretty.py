"""Text of containers, over lines and bounded."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class PrettyPrinter:
    """Text of a container as `repr` gives it, over lines if it is long, and bounded.

    Only the containers of Python itself are taken apart; others have a representation of their own.
    """

    WIDTH = 80
    CHARS = 20_000
    """About as much is shown; then each container says how many items are left out."""
    MAX_INDENT = 12

    def __init__(self) -> None:
        import collections

        self._room = self.CHARS
        self._within: set[int] = set()
        empty: dict[Any, Any] = {}
        self._ends: dict[Any, tuple[str, str]] = {
            list: ("[", "]"),
            tuple: ("(", ")"),
            set: ("{", "}"),
            frozenset: ("frozenset({", "})"),
            type(empty.keys()): ("dict_keys([", "])"),
            type(empty.values()): ("dict_values([", "])"),
            type(empty.items()): ("dict_items([", "])"),
        }
        self._mappings: dict[Any, tuple[str, str]] = {
            dict: ("{", "}"),
            collections.Counter: ("Counter({", "})"),
            collections.defaultdict: ("defaultdict(", "})"),
        }

    def format(self, value: Any, indent: int = 0) -> str:
        """
        Args:
            indent: columns before it, in each of its lines.
        """
        kind = type_of(value)
        is_mapping = kind in self._mappings
        ends = self._mappings.get(kind) or self._ends.get(kind)
        if ends is None or not value:
            return self._leaf(value)
        opening, closing = ends
        if id(value) in self._within:
            return f"{opening}...{closing}"
        if opening == "defaultdict(":
            opening += f"{value.default_factory!r}, {{"
        if kind is tuple and len(value) == 1:
            closing = ",)"
        self._within.add(id(value))
        inner = indent + min(len(opening), self.MAX_INDENT)
        items: Any = value
        if is_mapping:
            items = value.most_common() if opening == "Counter({" else value.items()
        parts: list[str] = []
        nested = is_mapping
        for item in items:
            if self._room <= 0:
                parts.append(f"... {len(value) - len(parts):,} more")
                break
            if is_mapping:
                key, item = item  # noqa: PLW2901  # a pair
                before = f"{self._leaf(key)}: "
                parts.append(before + self.format(item, inner + len(before)))
            else:
                nested = nested or type_of(item) in self._ends or type_of(item) in self._mappings
                parts.append(self.format(item, inner))
        self._within.discard(id(value))
        line = f"{opening}{', '.join(parts)}{closing}"
        if "\n" not in line and indent + len(line) <= self.WIDTH:
            return line
        lines = parts if nested else self._packed(parts, self.WIDTH - inner)
        return opening + (",\n" + " " * inner).join(lines) + closing

    def _leaf(self, value: object) -> str:
        text = repr(value)
        self._room -= len(text) + 2
        return text

    @staticmethod
    def _packed(parts: list[str], width: int) -> list[str]:
        """Join parts to lines, as many in each as there is room for."""
        lines = [parts[0]]
        for part in parts[1:]:
            if len(lines[-1]) + len(part) + 3 <= width:
                lines[-1] += f", {part}"
            else:
                lines.append(part)
        return lines


def type_of(value: object) -> Any:
    return type(value)
