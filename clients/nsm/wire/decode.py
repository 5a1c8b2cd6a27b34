"""Plain values (from JSON or CBOR) become the values that annotations describe, or an error.

A `NamedTuple` or dataclass is read from a map, field by field, by its annotations:

- `str`, `bool`, `bytes`, `int`, `float` take exactly that type; `float` takes integers, too.
- `X | None`, `Literal`, unions, `tuple`, `list`, `frozenset`, `dict` and `Mapping` (with text
  keys) take what they say; `Any` takes everything.
- A field that is missing or null has its default, or None where its type has that.
- Unknown fields are ignored: a newer peer may send more.

`Annotated` says more: a text is the path of a field that the map has elsewhere (``network.mode``;
empty for the map itself), a `Constraint` limits the value, a `Converted` one is made of another.
"""

import types
from collections.abc import Callable, Mapping, Sized
from functools import cache, partial
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from nsm.wire.tuples import NamedTuple

T = TypeVar("T")

Reader: TypeAlias = Callable[[Any], Any]

MISSING: Any = object()
"""Stand-in for a value that is not there."""

_NOUNS = {
    str: "text",
    bool: "true or false",
    bytes: "bytes",
    int: "an integer",
    float: "a number",
    dict: "a map",
    list: "a list",
}


MAX_SHOWN = 80
"""Characters of a value or key that an error quotes."""


def shown(value: object) -> str:
    """Quote a value for a message, shortened."""
    if isinstance(value, str | bytes):
        return f"{value[:MAX_SHOWN]!r:.{MAX_SHOWN}}"
    if isinstance(value, list | dict) and (size := len(cast("Sized", value))) > MAX_SHOWN:
        return f"{'a list' if isinstance(value, list) else 'a map'} of {size}"
    if isinstance(value, int) and (bits := value.bit_length()) > MAX_SHOWN:
        return f"a number of {bits} bits"  # Python writes no number of thousands of digits
    return f"{value!r:.{MAX_SHOWN}}"


class DecodeError(ValueError):
    """A value does not fit.

    Attributes:
        path: path of the field, such as ``session.name``; empty for the whole.
        found: the value that is there.
        expected: noun for what should be.
    """

    def __init__(self, found: object, expected: str) -> None:
        super().__init__(found, expected)
        self.path = ""
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        if self.missing:
            return f"{self.path} is missing, expected {self.expected}"
        return f"{self.path or 'it'} is {shown(self.found)}, expected {self.expected}"

    @property
    def missing(self) -> bool:
        """True if there is nothing where something should be."""
        return self.found is MISSING

    def within(self, key: str) -> "DecodeError":
        """The same, told from the map or list around it. Anybody's keys are bounded."""
        if not key:
            return self
        dot = "." if self.path and not self.path.startswith("[") else ""
        as_text = key if len(key) <= MAX_SHOWN and key.isprintable() else repr(key[:MAX_SHOWN])
        self.path = f"{as_text}{dot}{self.path}"
        return self


class Constraint(NamedTuple):
    """Limits a field: `test` says whether a value may be, `expected` what may.

    With `early`, lists and maps are tested before their items are read, too: reading millions of
    items only to refuse them would take seconds.
    """

    test: Callable[[Any], bool]
    expected: str
    early: bool = False


def at_most(length: int, noun: str) -> Constraint:
    """Limit the length of a text or list."""

    def fits(value: Sized) -> bool:
        return len(value) <= length

    return Constraint(fits, f"at most {length} {noun}", early=True)


def at_least(least: float, noun: str = "a whole number") -> Constraint:
    """Limit a number from below."""

    def fits(number: float) -> bool:
        return number >= least

    return Constraint(fits, f"{noun} from {least}")


def between(least: float, most: float, noun: str = "a whole number") -> Constraint:
    """Limit a number."""

    def fits(number: float) -> bool:
        return least <= number <= most

    return Constraint(fits, f"{noun} from {least} to {most}")


class Converted(NamedTuple):
    """A value that the function `by` makes of a plain one, of type `of`; it may raise
    `ValueError`. In arguments of operations, `back` makes the plain value again.
    """

    of: Any
    by: Reader
    back: Reader | None = None


def decode(kind: type[T], plain: object) -> T:
    """The value of that type.

    Raises:
        DecodeError: it is something else.
    """
    read: Any = _reader  # typing.cast would be a call
    found: T = read(kind)[1](plain)
    return found


def read_arguments(function: Callable[..., Any], plain: object) -> dict[str, Any]:
    """Arguments of a function by name, as its annotations say, with its defaults.

    Raises:
        DecodeError: one is missing or wrong.
    """
    found: dict[str, Any] = _arguments(function)(plain)
    return found


@cache
def parameters(function: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The positional parameters of a function, and the defaults of all."""
    names: tuple[str, ...] = function.__code__.co_varnames[: function.__code__.co_argcount]
    usual = dict(zip(reversed(names), reversed(function.__defaults__ or ()), strict=False))
    return names, usual | (function.__kwdefaults__ or {})


@cache
def _arguments(function: Any) -> Reader:
    _, usual = parameters(function)
    hints = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    defaults: dict[str, Callable[[], Any] | None] = {
        name: partial(usual.get, name) if name in usual else None for name in hints
    }
    return _fields(hints, defaults, lambda values: dict(zip(hints, values, strict=True)))


@cache
def _reader(kind: Any) -> tuple[type | None, Reader]:
    """Reader of a type: values of exactly the first are taken as they are."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _NOUNS or kind is types.NoneType:
        return kind, _of_type(kind)
    if kind in (Any, object):
        return None, _anything
    if origin is Annotated:
        return _annotated(inner[0], inner[1:])
    if origin is Literal:
        return None, _one_of(inner)
    if origin in (Union, types.UnionType):
        return _union([each for each in inner if each is not types.NoneType], inner)
    if origin is tuple and inner[1:] != (...,):
        return None, _fixed(inner)
    if origin in (tuple, list, frozenset):
        return None, _several(origin, inner[0])
    if issubclass(origin or kind, Mapping):
        return (dict, _of_type(dict)) if inner in ((), (str, Any)) else (None, _map(*inner))
    return None, _class(kind)


def _anything(plain: Any) -> Any:
    if plain is MISSING:
        raise DecodeError(plain, "a value")
    return plain


def _of_type(kind: type) -> Reader:
    def read(plain: Any) -> Any:
        if type(plain) is kind or (kind is float and type(plain) is int):
            return plain
        raise DecodeError(plain, _NOUNS.get(kind, "null"))

    return read


def _one_of(values: tuple[Any, ...]) -> Reader:
    def read(plain: Any) -> Any:
        if plain in values:
            return plain
        raise DecodeError(plain, " or ".join(map(repr, values)))

    return read


def _checked(inner: Reader, constraint: Constraint) -> Reader:
    def read(plain: Any) -> Any:
        if constraint.early and type(plain) in (list, dict) and not constraint.test(plain):
            raise DecodeError(plain, constraint.expected)
        try:
            value = inner(plain)
        except DecodeError as error:
            if error.path:
                raise
            raise DecodeError(plain, constraint.expected) from None
        if constraint.test(value):
            return value
        raise DecodeError(plain, constraint.expected)

    return read


def _annotated(kind: Any, notes: tuple[object, ...]) -> tuple[type | None, Reader]:
    made = next((note for note in notes if isinstance(note, Converted)), None)
    found = _reader(kind) if made is None else (None, _made(_reader(made.of)[1], made.by))
    for note in notes:
        if isinstance(note, Constraint):
            found = None, _checked(found[1], note)
    return found


def _made(inner: Reader, by: Reader) -> Reader:
    def read(plain: Any) -> Any:
        try:
            return by(inner(plain))
        except DecodeError:
            raise
        except ValueError as error:
            raise DecodeError(plain, str(error)) from error

    return read


def _union(kinds: list[Any], all_kinds: tuple[Any, ...]) -> tuple[type | None, Reader]:
    readers = [_reader(each) for each in kinds]
    may_be_none = len(kinds) < len(all_kinds)

    def read(plain: Any) -> Any:
        if plain is None and may_be_none:
            return None
        failure: DecodeError | None = None
        for _, each in readers:
            try:
                return each(plain)
            except DecodeError as error:
                failure = failure or error
        assert failure is not None, "a union has members"
        raise failure

    return readers[0][0], read


def _several(make: Callable[[list[Any]], Any], kind: Any) -> Reader:
    exact, inner = _reader(kind)
    if inner is _anything:
        return lambda plain: make(_list(plain))

    def read(plain: Any) -> Any:
        items: list[Any] = []
        for item in _list(plain):
            if type(item) is not exact:
                try:
                    items.append(inner(item))
                except DecodeError as error:
                    raise error.within(f"[{len(items)}]") from None
            else:
                items.append(item)
        return items if make is list else make(items)

    return read


def _fixed(kinds: tuple[Any, ...]) -> Reader:
    readers = [_reader(kind)[1] for kind in kinds]

    def read(plain: Any) -> Any:
        items = _list(plain)
        if len(items) != len(readers):
            raise DecodeError(plain, f"a list of {len(readers)}")
        return tuple(each(item) for each, item in zip(readers, items, strict=True))

    return read


def _list(plain: Any) -> list[Any]:
    if type(plain) is not list:
        raise DecodeError(plain, "a list")
    return plain  # pyright: ignore[reportUnknownVariableType]


def _map(of_keys: Any, kind: Any) -> Reader:
    read_key = _reader(of_keys)[1]
    exact, inner = _reader(kind)

    def read(plain: Any) -> Any:
        told: dict[str, Any] = plain
        if not isinstance(plain, dict):
            raise DecodeError(plain, "a map")
        found: dict[str, Any] = {}
        for key, item in told.items():
            try:
                found[read_key(key)] = item if type(item) is exact else inner(item)
            except DecodeError as error:
                raise error.within(key) from None
        return found

    return read


def _class(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    defaults = _defaults(kind)
    make = getattr(kind, "_make", None)
    if make is None:  # twice as fast as a map of arguments
        given = ", ".join(f"{name}=values[{at}]" for at, name in enumerate(defaults))
        make = eval(f"lambda values: kind({given})", {"kind": kind})  # noqa: S307  # identifiers
    return _fields(hints, defaults, make)


def _fields(
    hints: dict[str, Any],
    defaults: dict[str, Callable[[], Any] | None],
    make: Callable[[list[Any]], Any],
) -> Reader:
    """Make the reader of a map, which reads it field by field."""
    fields = [(name, *_field(name, hints[name]), default) for name, default in defaults.items()]

    def read(plain: Any) -> Any:
        told: dict[str, Any] = plain
        if not isinstance(plain, dict):
            raise DecodeError(plain, "a map")
        values: list[Any] = []
        for name, path, exact, null, inner, default in fields:
            value = told.get(name, MISSING) if path is None else _at(path, told)
            if type(value) is exact or (null and value is None):
                values.append(value)
            elif default is not None and (value is None or value is MISSING):
                values.append(default())
            elif null and value is MISSING:
                values.append(None)
            else:
                try:
                    values.append(inner(value))
                except DecodeError as error:
                    raise error.within(name if path is None else path) from None
        try:
            return make(values)
        except ValueError as error:
            raise DecodeError(plain, str(error)) from error  # pyright: ignore[reportUnknownArgumentType]

    return read


def _field(name: str, hint: Any) -> tuple[str | None, type | None, bool, Reader]:
    """The path of a field that is elsewhere, the type whose values are taken as they are, whether
    None is, and how others are read.
    """
    bare, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    path = next((note for note in notes if isinstance(note, str)), name)
    exact, inner = _reader(hint)
    return None if path == name else path, exact, types.NoneType in get_args(bare), inner


def _at(path: str, told: dict[str, Any]) -> Any:
    found: Any = told
    for key in path.split(".") if path else ():
        found = cast("Any", found).get(key, MISSING) if isinstance(found, dict) else MISSING
    return found


def _defaults(kind: Any) -> dict[str, Callable[[], Any] | None]:
    """The fields of a class, with what makes their defaults."""
    if hasattr(kind, "_field_defaults"):
        usual = {name: partial(kind._field_defaults.get, name) for name in kind._field_defaults}
        return {name: usual.get(name) for name in kind._fields}
    import dataclasses  # noqa: PLC0415  # clients have none, see the package

    found: dict[str, Callable[[], Any] | None] = {}
    for each in dataclasses.fields(kind):
        if each.default_factory is not dataclasses.MISSING:
            found[each.name] = each.default_factory
        elif each.init:
            has_one = each.default is not dataclasses.MISSING
            found[each.name] = partial(getattr, each, "default") if has_one else None
    return found
