"""`nsm.dataclass` and `nsm.wire.tuples` against the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import subprocess
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import nsm
from nsm.dataclass import dataclass, field, replace
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


def kinds_of(decorators: tuple[Any, Any]) -> dict[str, Any]:
    """Classes of all kinds that nsm has, made with `dataclass` and `field`."""
    dataclass, field = decorators

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Frozen:
        name: str
        secret: str = field(default="s", repr=False)
        words: tuple[str, ...] = ()
        facts: dict[str, int] = field(default_factory=dict, compare=False)
        shared: ClassVar[int] = 3

        @property
        def long(self) -> str:
            return self.name * 2

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Derived(Frozen):
        more: int = 1

    @dataclass(slots=True)
    class Mutable:
        name: str
        held: list[int] = field(default_factory=list, init=False)
        count: int = 0

        def __post_init__(self) -> None:
            self.count += 1

    @dataclass(eq=False, slots=True, kw_only=True)
    class Identity:
        name: str

    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    @dataclass(frozen=True, slots=True)
    class Own:
        name: str

        def __init__(self, name: str) -> None:
            object.__setattr__(self, "name", name.upper())

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    return {kind.__name__: kind for kind in (Frozen, Derived, Mutable, Identity, Empty, Own)}


OURS: dict[str, Any] = kinds_of((dataclass, field))
THEIRS: dict[str, Any] = kinds_of((dataclasses.dataclass, dataclasses.field))
KINDS = sorted(OURS)


def outcome(call: Callable[[Any], object], kind: object) -> str:
    """Result of a call as text, or that it was refused."""
    try:
        return repr(call(kind))
    except (TypeError, AttributeError):  # the standard library's own is the wrong one at times
        return "refused"


CALLS: list[Callable[[Any], object]] = [
    lambda kind: kind(),
    lambda kind: kind("a"),
    lambda kind: kind(name="a"),
    lambda kind: kind(name="a", words=("b",), facts={"c": 1}),
    lambda kind: kind(name="a") == kind(name="a"),
    lambda kind: kind(name="a") == kind(name="b"),
    lambda kind: kind(name="a") == "a",
    lambda kind: kind(name="a", facts={"c": 1}) == kind(name="a"),
    lambda kind: hash(kind(name="a")) == hash(kind(name="a")),
    lambda kind: {kind(): 1}[kind()],
    lambda kind: setattr(kind(name="a"), "name", "b"),
    lambda kind: setattr(kind(name="a"), "unknown", "b"),
    lambda kind: delattr(kind(name="a"), "name"),
    lambda kind: kind(name="a").long,
    lambda kind: kind(name="a").held is kind(name="a").held,
    lambda kind: dataclasses.asdict(kind(name="a")),
    lambda kind: dataclasses.replace(kind(name="a"), name="b"),
    lambda kind: [(f.name, f.type, f.default, f.init) for f in dataclasses.fields(kind)],
    lambda kind: [
        (f.repr, f.compare, f.kw_only, f.default_factory) for f in dataclasses.fields(kind)
    ],
    lambda kind: kind.__match_args__,
    lambda kind: kind.__slots__,
]


@pytest.mark.parametrize("name", KINDS)
def test_does_what_the_standard_library_does(name: str) -> None:
    for call in CALLS:
        assert outcome(call, OURS[name]) == outcome(call, THEIRS[name]), inspect.getsource(call)


class OurTuple(NamedTuple):
    name: str
    words: tuple[str, ...] = ()

    @property
    def long(self) -> str:
        return self.name * 2


class OurDerived(OurTuple):
    pass


class TheirTuple(typing.NamedTuple):
    name: str
    words: tuple[str, ...] = ()

    @property
    def long(self) -> str:
        return self.name * 2


class TheirDerived(TheirTuple):
    __slots__ = ()


CALLS_OF_TUPLES: list[Callable[[Any], object]] = [
    *(call for call in CALLS if "dataclasses" not in inspect.getsource(call)),
    lambda kind: kind(1, 2, 3),
    lambda kind: kind("a", unknown=1),
    lambda kind: kind("a", ("b",)) == ("a", ("b",)),
    lambda kind: repr(kind("a", ("b",))).partition("(")[2],
    lambda kind: kind("a")._asdict(),
    lambda kind: kind("a")._replace(words=("b",)).words,
    lambda kind: kind._make(["a", ("b",)]).words,
    lambda kind: kind._make(["a", ("b",), 3]),
    lambda kind: copy.copy(kind("a")).name,
    lambda kind: (kind._fields, kind._field_defaults),
    lambda kind: list(typing.get_type_hints(kind).items()),
]


@pytest.mark.parametrize(
    ("ours", "theirs"), [(OurTuple, TheirTuple), (OurDerived, TheirDerived)], ids=["own", "derived"]
)
def test_tuples_do_what_the_standard_librarys_do(ours: Any, theirs: Any) -> None:
    for call in CALLS_OF_TUPLES:
        found, expected = outcome(call, ours), outcome(call, theirs)
        assert found == expected.replace("Their", "Our"), inspect.getsource(call)


def test_replace_does_what_the_standard_library_does() -> None:
    frozen = OURS["Derived"](name="a", words=("w",), more=4)
    assert replace(frozen, name="b") == OURS["Derived"](name="b", words=("w",), more=4)
    with pytest.raises(TypeError, match="unknown"):
        replace(frozen, unknown=1)
    with pytest.raises(TypeError, match="not a dataclass"):
        replace(3)  # type: ignore[type-var]


def test_importing_it_imports_little() -> None:
    code = (
        "import sys, nsm.dataclass as module\n"
        "@module.dataclass(frozen=True, slots=True)\n"
        "class Value:\n    name: 'str'\n"
        "assert Value('a') != Value('b')\n"
        "print(*sys.modules)"
    )
    where = {"PYTHONPATH": str(Path(nsm.__file__).parents[1])}
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=where
    ).stdout.split()
    assert not {"dataclasses", "inspect", "typing"} & set(loaded)
