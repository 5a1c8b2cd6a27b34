"""An iterator over results of programs that each run in a fresh interpreter of a session."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING

from nsm.client import places
from nsm.client.steps import AsyncPart, BlockingPart, Calls, ask
from nsm.wire.code import RunOptions
from nsm.wire.errors import (
    BadRequestError,
    DisconnectedError,
    FateUnknownError,
    NsmError,
    ShuttingDownError,
)
from nsm.wire.fresh import (
    MAX_PROGRAMS,
    NOT_RUN,
    FreshProgram,
    FreshResult,
    OpenedFresh,
    fresh_close,
    fresh_next,
    fresh_open,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from nsm.client.places import ProjectCalls
    from nsm.client.steps import Steps
    from nsm.wire.code import Place
    from nsm.wire.operation import OperationCall

AHEAD = 16
"""Programs that are sent ahead for each that runs: while answers are on their way, others begin."""

MAX_EARLY_BYTES = 64 * 1024 * 1024
"""Results that wait for an earlier one, above which no further program is sent."""

MAX_SENT_BYTES = 1024 * 1024
"""Bytes of the programs of one request, after which it takes no further one."""

MAX_PROGRAM_BYTES = 8 * 1024 * 1024
"""Bytes of a program, the supervisor's limit for code: with others it fits into a frame."""


class MapSettings(places.PlaceSettings, total=False):
    """Settings of `Client.map`, as there."""

    timeout_s: float | None


class MapMethods(Calls):
    """Results of programs, as they come: an iterator, and a context manager that ends the rest.

    Attributes:
        session: the session in which they run.
        at_once: number of programs that run at the same time.
    """

    def begin(
        self,
        opened: OpenedFresh,
        programs: Iterable[str | FreshProgram | NsmError],
        timeout_s: float | None,
        *,
        in_order: bool,
    ) -> None:
        """Begin, with the answer to `fresh_open`; `timeout_s` is for programs that have none."""
        self.session = opened.session
        self.at_once = opened.at_once
        self._handle = opened.handle
        self._programs: Iterator[str | FreshProgram | NsmError] = iter(programs)
        self._timeout_s = timeout_s
        self._in_order = in_order
        self._read = self._sent = self._told = 0
        self._taken: int = 0
        self._exhausted = self._closed = self._interrupted = False
        self._numbers: dict[int, int] = {}  # of programs, by the numbers that they have there
        self._waiting: deque[FreshResult] = deque()
        self._early: dict[int, FreshResult] = {}
        self._early_bytes = 0

    def _more(self) -> tuple[FreshProgram, ...]:
        """Read further programs that can be sent, and keep results of those that cannot."""
        chosen: list[FreshProgram] = []
        room = min(AHEAD * self.at_once - (self._sent - self._taken), MAX_PROGRAMS)
        size = 0
        if self._early_bytes > MAX_EARLY_BYTES:  # the earliest one that lacks has been sent
            room = 0
        while not self._exhausted and len(chosen) < room and size <= MAX_SENT_BYTES:
            try:
                given = next(self._programs)
            except StopIteration:
                self._exhausted = True
                break
            number = self._read
            self._read += 1
            try:
                program = self._checked(given)
            except NsmError as error:
                self._keep([FreshResult(number, "", "", NOT_RUN, error=error.message)])
                continue
            self._numbers[self._sent + len(chosen)] = number
            chosen.append(program)
            size += _size(program)
        return tuple(chosen)

    def _checked(self, given: object) -> FreshProgram:
        if isinstance(given, NsmError):
            raise given
        program = FreshProgram(given) if isinstance(given, str) else given
        if not isinstance(program, FreshProgram):
            raise BadRequestError(f"a program is text or an nsm.FreshProgram, not {given!r:.80}")
        limit = self._timeout_s if program.timeout_s is None else program.timeout_s
        _check_limit(limit)
        checked = FreshProgram(places.checked_code(program.code), limit, tuple(program.argv))
        if (size := _size(checked)) > MAX_PROGRAM_BYTES:
            raise BadRequestError(
                f"the program has {size:,} bytes with its arguments; "
                f"the limit is {MAX_PROGRAM_BYTES:,}"
            )
        return checked

    def _next(self) -> Steps[FreshResult | None]:
        """Wait for the next result; None when there are no more. Raise KeyboardInterrupt after
        Ctrl-C, once all results are told that came before.
        """
        while not self._waiting:
            if self._interrupted:
                yield from self._close()
                raise KeyboardInterrupt
            if self._closed:
                return None
            try:
                programs = self._more()
                if self._waiting and not programs:
                    break
                self._sent += len(programs)
                if self._sent == self._taken:
                    yield from self._close()
                    return None
                # Results of programs that could not be sent do not wait for those that were.
                wait = not self._waiting
                call = fresh_next(self._handle, programs, wait=wait)
                answer = yield from ask(call, interruptible=True)
            except (DisconnectedError, ShuttingDownError) as error:
                self._closed = True
                raise self._unknown() from error
            except BaseException:
                yield from self._close()
                raise
            self._taken += len(answer.results)
            self._interrupted = answer.cancelled
            self._keep(
                [each._replace(number=self._numbers.pop(each.number)) for each in answer.results]
            )
        self._told += 1
        return self._waiting.popleft()

    def _keep(self, results: Iterable[FreshResult]) -> None:
        if not self._in_order:
            self._waiting.extend(results)
            return
        for each in results:
            self._early[each.number] = each
            self._early_bytes += _size_of(each)
        while (result := self._early.pop(self._told + len(self._waiting), None)) is not None:
            self._waiting.append(result)
            self._early_bytes -= _size_of(result)

    def _unknown(self) -> FateUnknownError:
        under_way = self._sent - self._taken
        return FateUnknownError(
            f"The supervisor ended while programs were under way. Of the {self._sent} that were "
            f"sent, {self._taken} had ended; whether the other {under_way} ran is unknown.",
            hint="Run those again whose results did not come.",
        )

    def _close(self) -> Steps[None]:
        if not self._closed:
            self._closed = True
            with suppress(NsmError):  # the session or the connection may be gone
                yield from ask(fresh_close(self._handle))


def _check_limit(limit_s: float | None) -> None:
    if limit_s is not None and not (isfinite(limit_s) and limit_s > 0):
        raise BadRequestError(f"timeout must be a number of seconds above 0, not {limit_s}.")


def _size(program: FreshProgram) -> int:
    """Count the bytes of a program; an argument has 40 more, since a frame has few items, too."""
    arguments = (len(word.encode(errors="surrogatepass")) + 40 for word in program.argv)
    return len(program.code.encode()) + sum(arguments)


def _size_of(result: FreshResult) -> int:
    """Count the characters of a result, about as many bytes."""
    displays = len(str(result.displays)) if result.displays else 0
    return len(result.stdout) + len(result.stderr) + displays


class FreshMap(MapMethods, BlockingPart):
    __doc__ = MapMethods.__doc__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.carry_out(self._close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FreshResult:
        result = self.carry_out(self._next())
        if result is None:
            raise StopIteration
        return result


class AsyncFreshMap(MapMethods, AsyncPart):
    """The same for `nsm.AsyncClient`: an asynchronous iterator."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.carry_out(self._close())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FreshResult:
        result = await self.carry_out(self._next())
        if result is None:
            raise StopAsyncIteration
        return result


def open_session(
    calls: ProjectCalls,
    session: str,
    at_once: int | None,
    settings: MapSettings,
    inherit: Iterable[str],
) -> Steps[OpenedFresh]:
    """Open the session in which programs are to run."""
    places.check_names(settings, MapSettings)
    _check_limit(settings.get("timeout_s"))

    def call(place: Place) -> OperationCall[OpenedFresh]:
        return fresh_open(place, RunOptions(), at_once=at_once)

    return (yield from calls.in_session(session, settings, inherit, call))
