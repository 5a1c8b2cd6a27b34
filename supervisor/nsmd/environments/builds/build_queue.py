"""Builds that wait and run, a few at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

import trio

from nsm.wire.errors import InternalError, NsmError, OverloadedError
from nsmd.environments.builds import names, wording
from nsmd.environments.builds.build_directory import BuildDirectory, BuildRecord
from nsmd.environments.builds.build_run import BuildRun
from nsmd.environments.builds.build_state import Attempt, Building, Failed

log = logging.getLogger(__name__)

CONCURRENT_BUILDS = 2
"""Nix runs many builders for each; more would only share the same processors and memory."""

MAX_QUEUED = 64
"""Largest number of waiting builds; more are refused."""

MAX_INTERRUPTIONS = 2
"""After so many in a row, a build does not start by itself again: it may be what ends the
supervisor.
"""


FAILED_KEPT_S = 24 * 3600.0
"""Time for which `nsm env` shows an environment that was never built: most are typos."""


class BuildQueue:
    """Builds that wait and run.

    Args:
        build_run: runs one build.
        directory: keeps the builds.
        record: is told of each change.
        nursery: owns the builds.
        every: function that returns all environments.
        changed: called when a build has ended.
    """

    def __init__(
        self,
        build_run: BuildRun,
        directory: BuildDirectory,
        record: BuildRecord,
        nursery: trio.Nursery,
        *,
        every: Callable[[], Collection[Building]],
        changed: Callable[[], None],
    ) -> None:
        self._build_run = build_run
        self._directory = directory
        self._record = record
        self._nursery = nursery
        self._all = every
        self._changed = changed
        self._turns = trio.CapacityLimiter(CONCURRENT_BUILDS)

    def _wanted(self) -> list[Building]:
        return [building for building in self._all() if building.wanted]

    def begin_unless_hopeless(self, building: Building) -> None:
        """Begin a build, unless one is under way, or it may be what ends supervisors."""
        if building.attempt is not None:
            return
        if building.interruptions >= MAX_INTERRUPTIONS:
            building.tried = True
            building.failed = wording.interrupted(building, time.time())
            return
        self.begin(building)

    def check_room(self) -> None:
        """Check that another new build may wait; all known environments may wait at once.

        Raises:
            OverloadedError: too many builds wait.
        """
        waiting = sum(b.state == "queued" for b in self._all())
        if waiting >= MAX_QUEUED:
            raise OverloadedError(
                f"{waiting} builds wait already.",
                hint="`nsm env builds` shows them; try again later.",
            )

    def begin(self, building: Building, *, refresh: bool = False) -> None:
        """Begin a build; it waits for its turn.

        Args:
            refresh: look for newer versions.
        """
        building.attempt = self._build_run.begun(building, refresh=refresh)
        building.tried = True
        building.outdated = False
        building.note()
        self._record.mark()
        self._nursery.start_soon(self._carry_out, building, building.attempt, name=repr(building))

    def schedule_forgetting(self, building: Building) -> None:
        """Forget an environment that `nsm env add` could not make, but only `FAILED_KEPT_S` after
        that, and if nobody has tried again.
        """
        if building.failed is not None and building.built is None:
            self._nursery.start_soon(self._forget_later, building, building.failed)

    async def _forget_later(self, building: Building, failed: Failed) -> None:
        # Clocks jump: it is never kept for longer than from now on.
        left_s = min(failed.at_s + FAILED_KEPT_S - time.time(), FAILED_KEPT_S)
        await trio.sleep(max(0.0, left_s))
        if building.failed is failed and building.attempt is None and building.added:
            log.info("%s is forgotten, since it could not be built", building.name)
            building.added = False
            self._record.mark()
            self._changed()
            building.note()

    async def _carry_out(self, building: Building, attempt: Attempt) -> None:
        """Carry out one build, from the queue to its result.

        Cancellation: of the attempt's scope, ends it with that reason; of the whole builder, leaves
        it recorded as running, so that the next supervisor starts it again.
        """
        error: NsmError | OSError | None = None
        with attempt.scope:
            try:
                async with self._turns:
                    attempt.started_s = trio.current_time()
                    building.note()
                    built = await self._build_run.build(building, attempt)
                    names.check_own(self._wanted(), building, built.environment.name)
                    self._directory.keep_older(building.built)
                    building.built = built
                    building.last_name = built.environment.name
            except (NsmError, OSError) as caught:
                error = caught
            except Exception:
                # The only catch-all of a build: its errors concern nobody else.
                log.exception("the build of %s failed inside the supervisor", building.name)
                error = InternalError("nsm failed during the build; the supervisor's log says why.")
        if attempt.scope.cancelled_caught:
            building.failed = Failed(
                cause="it was stopped", message="The build was stopped.", at_s=time.time()
            )
        elif error is not None:
            log.warning("environment %s is not built: %s", building.name, error)
            building.failed = wording.failure(error, time.time())
        else:
            building.failed = None
        building.interruptions = 0
        building.attempt = None
        self.schedule_forgetting(building)
        self._record.mark()
        self._changed()
        await self._directory.sweep(self._all)
        attempt.done.set()
        building.note()
        if building.outdated and building.wanted and building.attempt is None:
            self.begin(building)
