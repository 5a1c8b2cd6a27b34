"""Methods that the blocking and the async client have in common, each written once.

A method is a generator of steps: it yields what is to be done, and is sent the answer or thrown
what went wrong. `method` makes of it a method that returns its result on a blocking client, and a
coroutine function on an async one. Type checkers see the same.

Example::

    class PortMethods(Calls):
        @method
        def close(self, target: str, port: int) -> Steps[None]:
            yield from ask(port_close(target, port))

    class Ports(PortMethods, BlockingPart): ...  # ports.close("work", 80)
    class AsyncPorts(PortMethods, AsyncPart): ...  # await ports.close("work", 80)
"""

from __future__ import annotations

from functools import update_wrapper
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B")
A = TypeVar("A")
P2 = ParamSpec("P2")
B2 = TypeVar("B2")
A2 = TypeVar("A2")

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Coroutine, Generator, Iterable
    from typing import IO, Concatenate, Self, TypeAlias, overload

    from typing_extensions import TypeIs

    from nsm.wire.messages import Event
    from nsm.wire.operation import OperationCall

    OnEvent: TypeAlias = Callable[[Event], object]

    InputSource: TypeAlias = (
        bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]
    )

    Operation: TypeAlias = tuple[str, dict[str, Any], OnEvent | None, bool, InputSource | None]
    """An operation: its name and arguments, who is told of its events, whether Ctrl-C asks the
    supervisor to cancel it, and standard input of the code that it runs.
    """

    Step: TypeAlias = Operation | Callable[[], object] | None
    """One step: an operation; a function that takes its time, for which an async client has a
    thread, unless it is an `async` one of that client; or None, for others to have a turn.
    """

    Steps: TypeAlias = Generator[Step, dict[str, Any], T]


def is_operation(step: Step) -> TypeIs[Operation]:
    """Return whether a step is an operation."""
    return isinstance(step, tuple)


def ask(
    call: OperationCall[T],
    on_event: OnEvent | None = None,
    *,
    interruptible: bool = False,
    stdin: InputSource | None = None,
) -> Steps[T]:
    """Ask for one operation.

    Args:
        on_event: called with what comes before the answer.
        interruptible: Ctrl-C asks the supervisor to cancel it.
        stdin: standard input of the code that it runs.
    """
    return call.read((yield call.op, call.args, on_event, interruptible, stdin))


def carry_out(steps: Steps[T], perform: Callable[..., dict[str, Any]]) -> T:
    """Carry out steps in this thread, one after another; returns what they return.

    Args:
        perform: carries out an `Operation`.
    """
    try:
        step = next(steps)
        while True:
            answer: dict[str, Any] = {}
            try:
                if is_operation(step):
                    answer = perform(*step)
                elif step is not None:
                    step()
            except BaseException as error:  # noqa: BLE001  # the steps raise it again
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        outcome: T = end.value
        return outcome


class Calls:
    """A client, or a part of one, such as ``client.files(...)``."""

    def _choose(self, blocking: type[B], awaited: type[A]) -> Callable[..., SyncOrAsync[B, A]]:
        """The class of a part or handle, for blocking or for async code."""
        chosen: Any = awaited if isinstance(self, Async) else blocking
        return chosen  # type: ignore[no-any-return]


class Blocking(Calls):
    """A client whose methods return when they are done."""

    def carry_out(self, steps: Steps[T]) -> T:
        """Carry out steps; each client says how."""
        raise NotImplementedError

    def ask(
        self,
        call: OperationCall[T],
        on_event: OnEvent | None = None,
        *,
        interruptible: bool = False,
    ) -> T:
        """Any operation, as `nsm.wire` describes it; the rest is as in `call`."""
        return self.carry_out(ask(call, on_event, interruptible=interruptible))


class Async(Calls):
    """A client whose methods are awaited."""

    async def carry_out(self, steps: Steps[T]) -> T:
        """Carry out steps; each client says how."""
        raise NotImplementedError

    async def ask(
        self,
        call: OperationCall[T],
        on_event: OnEvent | None = None,
        *,
        interruptible: bool = False,
    ) -> T:
        """Any operation, as `nsm.wire` describes it; the rest is as in `call`."""
        return await self.carry_out(ask(call, on_event, interruptible=interruptible))


class BlockingPart(Blocking):
    """A part of a blocking client, or a handle of it."""

    def __init__(self, client: Blocking) -> None:
        self._client: Any = client  # a part may know more of it

    def carry_out(self, steps: Steps[T]) -> T:
        """Carry out steps with the client."""
        outcome: T = self._client.carry_out(steps)
        return outcome


class AsyncPart(Async):
    """A part of an async client, or a handle of it."""

    def __init__(self, client: Async) -> None:
        self._client: Any = client

    async def carry_out(self, steps: Steps[T]) -> T:
        """Carry out steps with the client."""
        outcome: T = await self._client.carry_out(steps)
        return outcome


class SyncOrAsync(Generic[B, A]):
    """The type of a result, for checkers: `B` on a blocking client, `A` on an async one."""


class method(Generic[P, B, A]):  # noqa: N801  # a decorator
    """Make a method of a generator of steps: it returns `B` on a blocking client, and is awaited
    for an `A` on an async one. Other steps have the generator as `Class.method.steps`.
    """

    __slots__ = ("_awaited", "_blocking", "steps")

    if TYPE_CHECKING:
        __name__: str

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: method[P2, B2, A2],
            steps: Callable[Concatenate[Any, P2], Steps[SyncOrAsync[B2, A2]]],
        ) -> None: ...
        @overload
        def __init__(
            self: method[P2, B2, B2], steps: Callable[Concatenate[Any, P2], Steps[B2]]
        ) -> None: ...

    def __init__(self, steps: Any) -> None:
        self.steps: Callable[..., Steps[Any]] = steps
        self._blocking: Any = None
        self._awaited: Any = None

    if TYPE_CHECKING:

        @overload
        def __get__(self, client: None, owner: type) -> Self: ...
        @overload
        def __get__(self, client: Blocking, owner: type) -> Callable[P, B]: ...
        @overload
        def __get__(self, client: Async, owner: type) -> Callable[P, Coroutine[Any, Any, A]]: ...

    def __get__(self, client: Any, owner: type) -> Any:
        if issubclass(owner, Async):
            function = self._awaited = self._awaited or _awaited(self.steps)
        else:
            function = self._blocking = self._blocking or _blocking(self.steps)
        return function if client is None else MethodType(function, client)


def _blocking(steps: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.carry_out(steps(self, *args, **kwargs))

    return _documented(call, steps, 0)


def _awaited(steps: Any) -> Any:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await self.carry_out(steps(self, *args, **kwargs))

    return _documented(call, steps, 1)


def _documented(function: Any, steps: Any, which: int) -> Any:
    """Give a method the name, text and signature of its steps, whose result is its own."""
    returned = steps.__annotations__["return"].removeprefix("Steps[")[:-1]
    if returned.startswith("SyncOrAsync["):
        returned = returned[len("SyncOrAsync[") : -1].split(", ")[which]
    shown = FunctionType(steps.__code__, {}, steps.__name__, steps.__defaults__)
    shown.__kwdefaults__ = steps.__kwdefaults__
    update_wrapper(function, steps)
    shown.__annotations__ = function.__annotations__ = {
        **steps.__annotations__,
        "return": returned,
    }
    function.__wrapped__ = shown  # where `inspect` finds the signature
    function.steps = steps
    return function


class handle_method(Generic[P, B, A]):  # noqa: N801  # a decorator
    """Make a method of a function that asks for nothing and returns a part of the client."""

    def __init__(self, function: Callable[Concatenate[Any, P], SyncOrAsync[B, A]]) -> None:
        self.function: Any = function

    if TYPE_CHECKING:

        @overload
        def __get__(self, client: None, owner: type) -> Self: ...
        @overload
        def __get__(self, client: Blocking, owner: type) -> Callable[P, B]: ...
        @overload
        def __get__(self, client: Async, owner: type) -> Callable[P, A]: ...

    def __get__(self, client: Any, owner: type) -> Any:
        return self.function if client is None else MethodType(self.function, client)


class handle_property(Generic[B, A]):  # noqa: N801  # a decorator
    """Make a property of a function that returns a part of the client."""

    def __init__(self, function: Callable[[Any], SyncOrAsync[B, A]]) -> None:
        self.function: Any = function
        self.__doc__ = function.__doc__

    if TYPE_CHECKING:

        @overload
        def __get__(self, client: None, owner: type) -> Self: ...
        @overload
        def __get__(self, client: Blocking, owner: type) -> B: ...
        @overload
        def __get__(self, client: Async, owner: type) -> A: ...

    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else self.function(client)
