"""Descriptions of operations, which both ends use: right, arguments and answer, written once.

A description is a function without a body. The client calls it to make a request; the supervisor
reads a request's arguments by it (`decode.read_arguments`), and its own function of that name has
the same arguments, which type checkers compare.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

from nsm.wire.decode import Converted, at_least, at_most, parameters
from nsm.wire.messages import read

P = ParamSpec("P")
R = TypeVar("R")

Right: TypeAlias = Literal["read", "run", "manage", "bridge"]
"""Rights: to see what all clients have, to run code in one's own sessions, to change anything, to
start bridge programs.
"""


class OperationCall(Generic[R]):
    """An operation with its arguments as they are sent."""

    __slots__ = ("_operation", "args", "op")

    def __init__(self, operation: "Operation[..., R]", args: dict[str, Any]) -> None:
        self._operation = operation
        self.op = operation.name
        self.args = args

    def read(self, wire: dict[str, Any]) -> R:
        """Read the answer; raises `RemoteProtocolError` if it is none."""
        return read(self._operation.answer, wire, self._operation.key)


class Operation(Generic[P, R]):
    """An operation; call it with its arguments.

    Attributes:
        right: right that a connection needs. With `own`, the right `run` is enough for sessions of
            its own scope.
        key: key of the answer, if it is one field of what is sent.
        recorded: arguments that the audit records of an operation with the right `manage`: never
            code, and never the content of files. None if it changes nothing, or is recorded
            elsewhere.
    """

    __slots__ = ("answer", "function", "key", "name", "own", "recorded", "right")

    right: Right

    def __init__(
        self,
        function: Callable[P, R],
        right: Right,
        *,
        own: bool,
        key: str,
        recorded: Sequence[str] | None,
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.answer: type[R] = function.__annotations__["return"]
        self.right = right
        self.own = own
        self.key = key
        self.recorded = recorded

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> OperationCall[R]:
        """Make a request. Arguments that have their defaults are left out."""
        names, usual = parameters(self.function)
        hints = self.function.__annotations__
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        sent: dict[str, Any] = {}
        for name, value in given.items():
            hint = hints[name]
            if "" in getattr(hint, "__metadata__", ()):  # its fields are arguments of their own
                sent |= _chosen_fields(value)
            elif name not in usual or value != usual[name]:
                sent[name] = _asked(value, hint)
        return OperationCall(self, sent)


def operation(
    right: Right, *, own: bool = False, key: str = "", recorded: Sequence[str] | None = ()
) -> Callable[[Callable[P, R]], Operation[P, R]]:
    """Make a description of a function, whose name is that of the operation."""
    return lambda function: Operation(function, right, own=own, key=key, recorded=recorded)


def encode(value: Any) -> Any:
    """Make plain values, as CBOR has them, of named tuples and others."""
    if isinstance(value, tuple) and hasattr(cast("Any", value), "_asdict"):
        named = cast("Any", value)
        hints = type(named).__annotations__
        return {name: _told(each, hints[name]) for name, each in named._asdict().items()}
    if isinstance(value, list | tuple | frozenset):
        return [encode(each) for each in cast("Iterable[Any]", value)]
    if isinstance(value, dict):
        return {key: encode(each) for key, each in cast("dict[str, Any]", value).items()}
    return value


def _told(value: Any, hint: Any) -> Any:
    back = _back(hint)
    if back is None and get_origin(hint) is tuple:
        return [_told(each, get_args(hint)[0]) for each in value]
    return encode(value if back is None else back(value))


def _back(hint: Any) -> Callable[[Any], Any] | None:
    for note in getattr(hint, "__metadata__", ()):
        if isinstance(note, Converted):
            return note.back
    return None


def _chosen_fields(value: Any) -> dict[str, Any]:
    """The fields of a named tuple that have not their defaults."""
    defaults, hints = value._field_defaults, type(value).__annotations__
    return {
        name: _asked(each, hints[name])
        for name, each in zip(value._fields, value, strict=True)
        if name not in defaults or each != defaults[name]
    }


_PLAIN = frozenset((str, bytes, bool, int, float, type(None)))


def _asked(value: Any, hint: Any) -> Any:
    """Make plain values of an argument: of named tuples, only what was chosen."""
    back = _back(hint)
    if back is not None:
        return encode(back(value))
    if type(value) in _PLAIN:  # most are
        return value
    if get_origin(hint) is tuple:
        return [_asked(each, get_args(hint)[0]) for each in value]
    return _chosen_fields(value) if hasattr(value, "_asdict") else encode(value)


# Arguments of several operations.

PIECE_BYTES = 256 * 1024
"""The most that one `file_read` or `file_write` carries: four of them fit into what a socket
buffers, and a transfer's memory is a few of them, whatever the file's size."""

Data: TypeAlias = Annotated[bytes, at_most(PIECE_BYTES, "bytes")]
Seconds: TypeAlias = Annotated[float, at_least(0, "a number of seconds")]
