"""`NamedTuple` of the standard library, with less done while modules are imported.

The standard library compiles text for each class and for each annotation that is text: a tenth of
the supervisor's start. Here a constructor is compiled when it is first called, and most never are.

For type checkers, this is the standard library's own.
"""

from __future__ import annotations

from collections import _tuplegetter  # type: ignore[attr-defined]  # as the standard library's own

TYPE_CHECKING = False  # `typing` itself takes 8 ms to import; checkers know this name
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, ClassVar, NamedTuple, Self

__all__ = ["NamedTuple"]


class _Class(type):
    """Makes the annotations of a class its fields, unless it inherits some."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _Class:
        namespace["__slots__"] = ()
        if not getattr(bases[0], "_fields", ()):
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {each: namespace.pop(each) for each in fields if each in namespace}
            namespace |= {each: _tuplegetter(at, "") for at, each in enumerate(fields)}
            namespace |= {"_fields": fields, "__match_args__": fields, "_field_defaults": defaults}
        return super().__new__(cls, name, bases, namespace)


class _NamedTuple(tuple[object, ...], metaclass=_Class):  # noqa: SLOT001
    if TYPE_CHECKING:
        _fields: ClassVar[tuple[str, ...]]
        _field_defaults: ClassVar[dict[str, Any]]

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        words = [
            f"{each}=usual[{each!r}]" if each in cls._field_defaults else each
            for each in cls._fields
        ]
        values = "".join(f"{each}, " for each in cls._fields)
        new: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        names: dict[str, Any] = {"usual": cls._field_defaults, "new": new}
        text = f"def __new__(_cls, {', '.join(words)}):\n return new(_cls, ({values}))"
        exec(text, names)  # noqa: S102  # made of names in our own sources
        cls.__new__ = staticmethod(names["__new__"])  # type: ignore[method-assign]
        return cls(*args, **kwargs)

    @classmethod
    def _make(cls, values: Iterable[object]) -> Self:
        return cls(*values)

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **changes: object) -> Self:
        return type(self)(**{**self._asdict(), **changes})

    def __getnewargs__(self) -> tuple[object, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        return f"{type(self).__name__}({shown})"


if not TYPE_CHECKING:
    NamedTuple = _NamedTuple
