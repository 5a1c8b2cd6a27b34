"""Operations as steps, which the blocking and the async client both carry out.

Steps are a generator. It yields operations and is sent their answers, or thrown what went wrong.
So what takes several operations is written once. `nsm.client.async_steps` carries steps out on
trio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeAlias

    from typing_extensions import TypeIs

    from nsm.wire.messages import Event
    from nsm.wire.operation import OperationCall

    Operation: TypeAlias = tuple[str, dict[str, Any]]

    Step: TypeAlias = Operation | Callable[[], object] | None
    """An operation and its arguments; a function that takes its time; or None, for others to have
    a turn.
    """

T = TypeVar("T")

if TYPE_CHECKING:
    Steps: TypeAlias = Generator[Step, dict[str, Any], T]


def is_operation(step: Step) -> TypeIs[Operation]:
    """Return whether a step is an operation with its arguments."""
    return isinstance(step, tuple)


def carry_out(steps: Steps[T], call: Callable[[str, dict[str, Any]], dict[str, Any]]) -> T:
    """Carry out steps, one after another; returns what they return.

    Args:
        call: carries out an operation with its arguments.
    """
    try:
        step = next(steps)
        while True:
            answer: dict[str, Any] = {}
            try:
                if is_operation(step):
                    answer = call(*step)
                elif step is not None:
                    step()
            except BaseException as error:  # noqa: BLE001  # the steps raise it again
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        outcome: T = end.value
        return outcome


def ask(call: OperationCall[T]) -> Steps[T]:
    """Ask for one operation."""
    return call.read((yield call.op, call.args))


class Calls:
    """Operations over a blocking connection. `nsm.Client` is one of these."""

    def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        *,
        on_event: Callable[[Event], object] | None = None,
        interruptible: bool = False,
    ) -> dict[str, Any]:
        """Any operation: the client's part."""
        raise NotImplementedError

    def ask(
        self,
        call: OperationCall[T],
        *,
        on_event: Callable[[Event], object] | None = None,
        interruptible: bool = False,
    ) -> T:
        """Any operation, as `nsm.wire` describes it; the rest is as in `call`."""
        return call.read(
            self.call(call.op, call.args, on_event=on_event, interruptible=interruptible)
        )

    def carry_out(self, steps: Steps[T]) -> T:
        """Carry out steps."""
        return carry_out(steps, self.call)
