"""The page of the control socket's operations, values and error codes, from their descriptions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from nsm.wire import errors, transcripts
from nsm.wire.decode import Converted
from nsm.wire.status import DrainProgress, Status
from nsm.wire.telemetry import Occurrence
from nsmd.control.operations import OPERATIONS

HEAD = """\
# Operations

Every operation of the control socket with its arguments and its answer, every error code, and the
fields of all values. [Control socket](control-socket.md) says how to ask. An argument with a
question mark may be left out.

"""

_WORDS: Mapping[object, str] = {
    str: "text",
    bool: "boolean",
    int: "integer",
    float: "number",
    bytes: "bytes",
    NoneType: "null",
}


_ATTRIBUTE = re.compile(r"(?m)^    (\S[^:\n]*):")


def _item(attribute: re.Match[str]) -> str:
    return "- " + ", ".join(f"`{name}`" for name in attribute[1].split(", ")) + ":"


class _Page:
    """Text of the page, and the values that it still has to describe."""

    def __init__(self) -> None:
        self._values: dict[str, type] = {}

    def text(self) -> str:
        """Return the whole page."""
        return "".join([HEAD, *self._operations(), *_errors(), *self._described()])

    def _operations(self) -> Iterator[str]:
        for name, row in sorted(OPERATIONS.items()):
            function = row.description.function
            hints = get_type_hints(function, include_extras=True)
            answer = self._shown(hints.pop("return"))
            key = row.description.key
            answer = f"{{{key}: {answer}}}" if key else answer
            assert function.__doc__, f"{name} does not say what it does"
            yield f"## {name}\n\n{_plain(function.__doc__)}\n\n"
            yield f"- right: `{row.right}`{', or `run` in its own scope' if row.own else ''}\n"
            arguments = list(self._arguments(function, hints))
            if arguments:
                yield f"- arguments: {', '.join(arguments)}\n"
            if answer != "{text: any}":  # else said above
                yield f"- answer: `{answer}`\n"
            yield "\n"

    def _arguments(self, function: Any, hints: Mapping[str, Any]) -> Iterator[str]:
        for name, parameter in inspect.signature(function).parameters.items():
            hint = hints[name]
            if "" in getattr(hint, "__metadata__", ()):  # its fields are arguments of their own
                fields: Any = get_args(hint)[0]
                for field, of_field in get_type_hints(fields, include_extras=True).items():
                    yield f"`{field}?: {self._shown(of_field)}`"
            else:
                optional = "?" * (parameter.default is not parameter.empty)
                yield f"`{name}{optional}: {self._shown(hint)}`"

    def _shown(self, hint: Any) -> str:
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            notes = hint.__metadata__
            kinds = [note.of for note in notes if isinstance(note, Converted)]
            return self._shown(kinds[0] if kinds else args[0])
        if origin in (Union, UnionType):
            return " | ".join(self._shown(each) for each in args)
        if origin is Literal:
            return " | ".join(f'"{each}"' for each in args)
        if origin is tuple and args[-1] is not ...:
            return f"[{', '.join(self._shown(each) for each in args)}]"
        if origin in (tuple, list, frozenset):
            return f"[{self._shown(args[0])}, ...]"
        if args:
            return f"{{{self._shown(args[0])}: {self._shown(args[1])}}}"
        if hasattr(hint, "_fields"):
            self._values[hint.__name__] = hint
            return str(hint.__name__)
        return _WORDS.get(hint, "any")

    def _described(self) -> Iterator[str]:
        named = (Status, DrainProgress, Occurrence, transcripts.EndedRow)
        for each in (*named, *get_args(transcripts.Entry)):
            self._values[each.__name__] = each
        done: set[str] = set()
        parts: dict[str, str] = {}
        while waiting := self._values.keys() - done:
            for name in waiting:
                parts[name] = "".join(self._value(self._values[name]))
                done.add(name)
        yield from (parts[name] for name in sorted(parts))

    def _value(self, kind: Any) -> Iterator[str]:
        said, _, attributes = (inspect.getdoc(kind) or "").partition("\n\nAttributes:\n")
        yield f"## {kind.__name__}\n\n{_plain(said)}\n\n"
        fields: list[str] = []
        for name, hint in get_type_hints(kind, include_extras=True).items():
            # A field that the wire has deeper inside says where.
            path = next((n for n in getattr(hint, "__metadata__", ()) if isinstance(n, str)), name)
            fields.append(f"`{path}: {self._shown(hint)}`")
        yield f"{', '.join(fields)}\n\n"
        if attributes:
            yield f"{_plain(re.sub(_ATTRIBUTE, _item, attributes))}\n\n"


def _errors() -> Iterator[str]:
    yield "## Error codes\n\n| code | means |\n| --- | --- |\n"
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    for kind in kinds:
        if issubclass(kind, errors.NsmError) and kind is not errors.NsmError:
            said = (inspect.getdoc(kind) or "").partition("\n\n")[0]
            yield f"| `{kind.code}` | {_plain(said)} |\n"
    yield "\n"


def _plain(text: str) -> str:
    """Text of a docstring as Markdown has it."""
    lines = inspect.cleandoc(text).replace("``", "`")
    for python, word in (("None", "null"), ("True", "true"), ("False", "false")):
        lines = re.sub(rf"\b{python}\b", word, lines)
    return re.sub(r"\n +", " ", lines) if "- " in lines else " ".join(lines.split())


def page() -> str:
    """Return the whole page."""
    return _Page().text()
