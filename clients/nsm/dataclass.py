"""`dataclass` of the standard library, with less done while modules are imported.

The standard library writes six methods for each class as text and compiles them: a third of the
supervisor's start. Here a method is compiled when it is first called, and most never are.
`dataclasses.fields`, `asdict` and the like work: the attributes of a class that they read are made
when they are first read.

Classes are always slotted. For type checkers, these are the standard library's own names.
"""

from __future__ import annotations

from functools import partial
from reprlib import recursive_repr

TYPE_CHECKING = False  # `typing` itself takes 8 ms to import; checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass, field, replace
    from typing import Any, NoReturn

__all__ = ["dataclass", "field", "replace"]

_ABSENT = object()
_FIELDS, _PARAMS = "__dataclass_fields__", "__dataclass_params__"


class _Field:
    """Arguments of `dataclasses.field`, and what the class adds."""

    __slots__ = ("annotation", "compare", "default", "factory", "init", "kw_only", "name", "repr")

    def __init__(
        self,
        *,
        default: object = _ABSENT,
        default_factory: Any = _ABSENT,
        init: bool = True,
        repr: bool = True,  # noqa: A002  # its name in the standard library
        compare: bool = True,
    ) -> None:
        self.default, self.factory = default, default_factory
        self.init, self.repr, self.compare = init, repr, compare
        self.name, self.annotation, self.kw_only = "", "", False


class _LazyAttribute:
    """`__dataclass_fields__` or `__dataclass_params__`, made at the first read."""

    __slots__ = ("_attribute", "_made", "fields", "options")

    def __init__(self, attribute: str, fields: dict[str, _Field], options: dict[str, bool]) -> None:
        self._attribute, self.fields, self.options = attribute, fields, options
        self._made: object = None

    def __get__(self, _instance: object, owner: type) -> object:
        if self._made is None:
            self._made = getattr(
                _standard_dataclass(owner, self.fields, self.options), self._attribute
            )
        return self._made


def _standard_dataclass(owner: type, fields: dict[str, _Field], options: dict[str, bool]) -> type:
    """Make a class of the same fields with the standard library's decorator."""
    import dataclasses  # noqa: PLC0415  # this module avoids it elsewhere

    namespace: dict[str, Any] = {
        "__annotations__": {each.name: each.annotation for each in fields.values()},
        "__module__": owner.__module__,
        "__doc__": owner.__doc__,
    }
    for each in fields.values():
        given: dict[str, Any] = {}
        if each.default is not _ABSENT:
            given["default"] = each.default
        if each.factory is not _ABSENT:
            given["default_factory"] = each.factory
        namespace[each.name] = dataclasses.field(
            init=each.init, repr=each.repr, compare=each.compare, kw_only=each.kw_only, **given
        )
    return dataclasses.dataclass(**options)(type(owner.__name__, (), namespace))


def _dataclass(
    *, frozen: bool = False, slots: bool, kw_only: bool = False, eq: bool = True
) -> Callable[[type], type]:
    """Make a slotted dataclass, with the options of `dataclasses.dataclass`."""
    assert slots
    options = {"frozen": frozen, "kw_only": kw_only, "eq": eq}

    def decorate(cls: type) -> type:
        namespace = dict(cls.__dict__)
        inherited: dict[str, _Field] = {}
        for base in reversed(cls.__mro__[1:]):
            if _FIELDS in base.__dict__:
                inherited.update(base.__dict__[_FIELDS].fields)
        fields = dict(inherited)
        for name, annotation in cls.__annotations__.items():
            if not annotation.startswith("ClassVar"):
                value = namespace.pop(name, _ABSENT)
                fields[name] = each = value if isinstance(value, _Field) else _Field(default=value)
                each.name, each.annotation, each.kw_only = name, annotation, kw_only
        for name in (_FIELDS, _PARAMS):
            namespace[name] = _LazyAttribute(name, fields, options)
        namespace["__slots__"] = tuple(name for name in fields if name not in inherited)
        namespace["__match_args__"] = tuple(
            each.name for each in fields.values() if each.init and not each.kw_only
        )
        if frozen:
            namespace["__setattr__"], namespace["__delattr__"] = _refuse_set, _refuse_delete
        for name in ("__dict__", "__weakref__"):
            namespace.pop(name, None)
        made = type(cls)(cls.__name__, cls.__bases__, namespace)
        made.__qualname__ = cls.__qualname__
        _add_methods(made, fields, frozen=frozen, eq=eq)
        return made

    return decorate


def _add_methods(cls: Any, fields: dict[str, _Field], *, frozen: bool, eq: bool) -> None:
    """Add the methods that the class does not define itself."""
    wanted: dict[str, Callable[[], str] | None] = {"__init__": partial(_init_text, cls, fields)}
    if eq:
        wanted["__eq__"] = partial(_eq_text, fields)
        wanted["__hash__"] = partial(_hash_text, fields) if frozen else None
    for name, text in wanted.items():
        if name not in cls.__dict__ or cls.__dict__[name] is None:
            setattr(cls, name, text and _compiled_at_first_call(cls, name, text, fields))
    if "__repr__" not in cls.__dict__:
        cls.__repr__ = _repr([each.name for each in fields.values() if each.repr])


def _compiled_at_first_call(
    cls: Any, name: str, text: Callable[[], str], fields: dict[str, _Field]
) -> Any:
    def method(self: object, *args: object, **kwargs: object) -> object:
        names: dict[str, Any] = {"__name__": cls.__module__, "_ABSENT": _ABSENT}
        for each in fields.values():
            names[f"_set_{each.name}"] = getattr(cls, each.name).__set__
            names[f"_default_{each.name}"] = each.default
            names[f"_make_{each.name}"] = each.factory
        exec(text(), names)  # noqa: S102  # made of names in our own sources
        compiled = names[name]
        compiled.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, compiled)
        return compiled(self, *args, **kwargs)

    return method


def _init_text(cls: type, fields: dict[str, _Field]) -> str:
    """Write `__init__`, which sets slots by their descriptors, also where the class is frozen."""
    positional: list[str] = []
    keywords: list[str] = []
    body: list[str] = []
    for name, each in fields.items():
        word = value = name
        if each.factory is not _ABSENT:
            word, value = f"{name}=_ABSENT", f"_make_{name}() if {name} is _ABSENT else {name}"
        elif each.default is not _ABSENT:
            word = f"{name}=_default_{name}"
        if each.init:
            (keywords if each.kw_only else positional).append(word)
        elif word == name:
            continue  # `__post_init__` sets it, or other code later
        else:
            value = f"_make_{name}()" if each.factory is not _ABSENT else f"_default_{name}"
        body.append(f"_set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    words = ["self", *positional, *(["*", *keywords] if keywords else ())]
    return f"def __init__({', '.join(words)}):\n " + "\n ".join(body or ["pass"])


def _eq_text(fields: dict[str, _Field]) -> str:
    return (
        "def __eq__(self, other):\n"
        " if other.__class__ is not self.__class__:\n"
        "  return NotImplemented\n"
        f" return {_compared('self', fields)} == {_compared('other', fields)}"
    )


def _hash_text(fields: dict[str, _Field]) -> str:
    return f"def __hash__(self):\n return hash({_compared('self', fields)})"


def _compared(value: str, fields: dict[str, _Field]) -> str:
    names = [each.name for each in fields.values() if each.compare]
    return f"({''.join(f'{value}.{name}, ' for name in names)})"


def _repr(shown: list[str]) -> Any:
    @recursive_repr()
    def __repr__(self: object) -> str:  # noqa: N807
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({values})"

    return __repr__


def _refuse_set(_self: object, name: str, _value: object) -> NoReturn:
    from dataclasses import FrozenInstanceError  # noqa: PLC0415  # this module avoids it elsewhere

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_self: object, name: str) -> NoReturn:
    from dataclasses import FrozenInstanceError  # noqa: PLC0415  # this module avoids it elsewhere

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _replace(value: object, /, **changes: Any) -> Any:
    """Return a copy with other values in some fields, as `dataclasses.replace` does."""
    cls: Any = type(value)
    for name, each in _fields_of(cls).items():
        if each.init and name not in changes:
            changes[name] = getattr(value, name)
    return cls(**changes)


def _fields_of(cls: type) -> dict[str, _Field]:
    for each in cls.__mro__:
        described = each.__dict__.get(_FIELDS)
        if isinstance(described, _LazyAttribute):
            return described.fields
    raise TypeError(f"{cls.__name__} is not a dataclass")


if not TYPE_CHECKING:
    dataclass, field, replace = _dataclass, _Field, _replace
