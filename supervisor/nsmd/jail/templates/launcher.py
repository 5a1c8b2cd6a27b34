"""All templates, and the one way to a session: a fork if that works, else a jail of its own."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, lru_cache, partial

import trio

from nsm.dataclass import dataclass, field, replace
from nsm.jail.failure import exhausted
from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.fdstore import records
from nsmd.fdstore.records import KeptEntries, discard_unusable
from nsmd.fdstore.store import DescriptorStore, NoStore
from nsmd.host.processes import share_of
from nsmd.host.source_watcher import SourceWatcher, open_source_watcher
from nsmd.jail import BwrapLauncher, Jail, Launcher
from nsmd.jail.arguments import TemplateSpec
from nsmd.jail.process import discard, reap_child
from nsmd.jail.project import NoCopyError, NoWritableRootError
from nsmd.jail.templates.spec import (
    FilesState,
    ForkPlan,
    plan_fork,
    read_state,
    template_like,
    template_of,
)
from nsmd.jail.templates.template import (
    PREFIX,
    ForkEndedError,
    ShortageError,
    Template,
    TemplateError,
    TemplateGoneError,
    TemplateRecord,
    kept_template,
    made_of,
    start_template,
    template_of_record,
)
from nsmd.model.values import Enforcement, Environment, JailSizes, JailSpec, SessionLimits

log = logging.getLogger(__name__)

MAX_TEMPLATES = 16
"""Largest number of templates, some 12 MB each. The least recently used one makes room."""

MAX_PLANS = 64
"""Largest number of remembered plans. Each has a request of at most 64 KiB."""

MAX_STARTING = 8
"""Templates that start at once. One whose imports hang takes a slot for some time."""

FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 1800.0
"""Longest time for which sessions start in jails of their own after a template failed; the time
doubles with each failure.
"""

SETTLE_S = 2.0
"""A changed template is replaced once its files are quiet for so long: an upgrade changes many."""

SETTLE_MOST_S = 60.0
"""But it is replaced after so long at the latest."""

CHANGING = "its interpreter, libraries or preloaded modules are being replaced at the moment"

_MOST_DOUBLINGS = 30
"""More would not fit a float; the longest pause is reached long before."""


@dataclass(slots=True, kw_only=True)
class _TemplateSeries:
    """The templates of one specification, one after another. `starting` is held while one is
    started, so that all who wait get the same. `failures` counts those in a row; those that happen
    together count once.
    """

    template: Template | None = None
    starting: trio.Lock = field(default_factory=trio.Lock)
    failures: int = 0
    retry_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTrial:
    """Result of preloading the modules of an environment.

    The reason says why there is no template at all; empty if there is one.
    """

    reason: str = ""
    imported: Mapping[str, float] = field(default_factory=dict[str, float])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    memory_bytes: int | None = None


class TemplateLauncher:
    """Launcher of sessions as forks of templates, or cold if that does not work. Cancelling the
    nursery ends the templates with all their sessions.
    """

    def __init__(
        self,
        cold: BwrapLauncher,
        system_calls: bytes,
        nursery: trio.Nursery,
        watcher: SourceWatcher,
        store: DescriptorStore,
        made: Callable[[], str],
    ) -> None:
        self._watcher = watcher
        self._outdated: list[int] = []
        self._report: Callable[[int, bool], None] = _nobody
        self._cold = cold
        self._store = store
        self._made = cache(made)  # digest of what templates are made of besides specifications
        self._plans = lru_cache(MAX_PLANS)(partial(plan_fork, self._cold))
        self._system_calls = system_calls
        self._nursery = nursery
        self._series: dict[TemplateSpec, _TemplateSeries] = {}
        self._reasons: dict[str, str] = {}
        self._unloaded: dict[str, Sequence[str]] = {}
        self._remarked: dict[str, Sequence[str]] = {}
        self._starting = trio.CapacityLimiter(MAX_STARTING)

    def __repr__(self) -> str:
        return f"<TemplateLauncher {len(self.templates)} templates>"

    @property
    def templates(self) -> list[Template]:
        """Templates that can be forked."""
        every = self._series.values()
        return [each.template for each in every if each.template and each.template.is_open]

    def templates_of(self, environment: Environment) -> list[Template]:
        """Templates whose forks are sessions of an environment."""
        every = self.templates
        return [each for each in every if template_like(each.spec, environment) == each.spec]

    def replace(self, old: Environment, new: Environment) -> None:
        """Start templates for an environment wherever its older form has some. These serve no new
        session of it, and end once nobody has used them for a while.
        """
        for spec in {template_like(each.spec, new) for each in self.templates_of(old)}:
            self._nursery.start_soon(self._make_again, spec)

    def take_up(self, entries: KeptEntries) -> None:
        """Take over the templates of an earlier supervisor. Nobody needs one that this version
        cannot read: its forks live on.
        """

        def take(record: TemplateRecord, descriptors: list[int]) -> Collection[int]:
            template, used = template_of_record(record, descriptors)
            if template is None:
                self._nursery.start_soon(reap_child, record.starter)
                return ()
            self._watch(template)
            series = self._series_of(template.spec)
            if record.made_of != self._made() or series.template is not None:
                template.close()
            else:
                series.template = template
            return used

        entries.take_over(PREFIX, TemplateRecord, take, unusable=discard_unusable)

    def _watch(self, template: Template) -> None:
        template.on_closed = self._closed
        self._nursery.start_soon(template.run, name=repr(template))
        if template.files:
            self._watcher.keep(
                template,
                repr(template),
                partial(read_state, template.files),
                partial(self._use_state, template),
                lambda: FilesState(state=template.state, places={}),
                quiet_s=SETTLE_S,
                patience_s=SETTLE_MOST_S,
                stirred=partial(self._suspect_change, template),
            )

    def _closed(self, template: Template) -> None:
        self._store.drop(template.name)
        self._watcher.end(template)

    # FilesState of templates.

    def on_change(self, changed: Callable[[int, bool], None]) -> None:
        """Call `changed` for templates whose files change, with the process id as in `Jail`, and
        whether the change is certain.
        """
        self._report = changed
        for pid in self._outdated:
            changed(pid, True)

    def catch_up(self) -> None:
        """Report changes that have not been reported yet."""
        self._watcher.catch_up()

    def _suspect_change(self, template: Template) -> None:
        if not template.suspect and template.is_open:
            template.suspect = True
            self._report(template.pid, False)

    def _use_state(self, template: Template, files: FilesState, unwatched: str | None) -> None:
        template.unwatched = unwatched is not None
        if not template.is_open:
            return
        if files.state == template.state:
            template.suspect = False
            return
        log.info("files that %r was made of have changed: it is replaced", template)
        self._outdated.append(template.pid)
        template.close()
        self._report(template.pid, True)
        self._nursery.start_soon(self._make_again, template.spec)

    async def _make_again(self, spec: TemplateSpec) -> None:
        series = self._series_of(spec)
        failures = series.failures
        try:
            await self._template(series, spec)
        except (TemplateError, StartFailedError, BadProjectError, OSError) as error:
            if isinstance(error, TemplateError | StartFailedError):
                self._failed(series, failures, error)

    async def _is_changing(self, series: _TemplateSeries) -> bool:
        """Return whether files of the present template are being replaced at this moment."""
        template = series.template
        if template is None or not template.is_open:
            return False
        if template.unwatched:
            await self._watcher.look(template)
        else:
            if not self._watcher.was_read(template):
                await self._watcher.first_look(template)
            self._watcher.catch_up()
        return template.is_open and template.suspect

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        for template in self.templates:
            yield from kept_template(template, self._made())

    @property
    def reasons(self) -> Mapping[str, str]:
        """Environments whose last session was no fork, by name, with the reason."""
        return self._reasons

    @property
    def unloaded(self) -> Mapping[str, Sequence[str]]:
        """Modules that could not be preloaded, by environment, each with the reason."""
        return self._unloaded

    @property
    def limits(self) -> SessionLimits:
        """Limits of all sessions."""
        return self._cold.limits

    def plan(self, spec: JailSpec) -> ForkPlan:
        """Plan how sessions of a specification are forked from their template."""
        return self._plans(spec, spec.rehearsed)

    async def prepare(self, spec: JailSpec) -> None:
        """Prepare the template, which may import for seconds."""
        plan = self._plans(spec, spec.rehearsed)
        if not plan.impossible:
            await self._prepare(plan.template)

    async def _prepare(self, spec: TemplateSpec) -> _TemplateSeries:
        series = self._series_of(spec)
        if (series.template and series.template.is_open) or trio.current_time() < series.retry_s:
            return series
        failures = series.failures
        try:
            await self._template(series, spec)
        except (TemplateError, StartFailedError) as error:
            self._failed(series, failures, error)
        return series

    async def try_preloading(self, environment: Environment) -> None:
        """Find modules of an environment that cannot be preloaded, for `unloaded` and `reasons`."""
        trial = await self.try_template(environment)
        if trial.reason:
            self._note_reason(environment, trial.reason)
        else:
            self._note_unloaded(environment, trial.failed)

    async def try_template(
        self, environment: Environment, old: Environment | None = None
    ) -> TemplateTrial:
        """Preload the modules of an environment, and say how that went. Where its older form has a
        template, the new one stays if nothing failed.
        """
        spec = JailSpec(environment=environment, project=None, sizes=JailSizes())
        if impossible := self._plans(spec, spec.rehearsed).impossible:
            return TemplateTrial(reason=impossible)
        older = self.templates_of(old) if old is not None else []
        used = max(older, key=lambda each: each.used_s, default=None)
        wanted = template_of(spec) if used is None else template_like(used.spec, environment)
        try:
            series = await self._prepare(wanted)
        except BadProjectError:  # its project is gone
            series = await self._prepare(template_of(spec))
        template = series.template
        if template is None or not template.is_open:
            return TemplateTrial(reason=series.reason or "its template has ended")
        memory_bytes = await trio.to_thread.run_sync(share_of, template.forker_pid)
        trial = TemplateTrial(
            imported=template.imported, failed=template.failed, memory_bytes=memory_bytes
        )
        if not template.forks and (used is None or template.failed):
            template.close()  # most sessions have a project, and so another template
        return trial

    async def launch(self, spec: JailSpec, group: int | None = None) -> Jail:
        environment = spec.environment
        jail = await self._why_not_forked(spec, group)
        if isinstance(jail, str):
            self._note_reason(environment, jail)
            if environment.preload and environment.image is None:
                text = f"nothing is preloaded in {environment.name}: {jail}"
                jail = await self._launch_cold(spec, group, jail)
                jail.remarks = partial(self._remark, environment.name, (text,))
                return jail
            return await self._launch_cold(spec, group, jail)
        self._reasons.pop(environment.name, None)
        return jail

    def _remark(self, environment: str, remarks: Sequence[str]) -> Sequence[str]:
        """Return these remarks, unless the latest for the environment were the same."""
        if self._remarked.get(environment) == remarks:
            return ()
        self._remarked[environment] = remarks
        return remarks

    def _note_unloaded(self, environment: Environment, failed: Mapping[str, str]) -> Sequence[str]:
        """Remember modules that could not be preloaded. Returns remarks about them."""
        name = environment.name
        texts = [f"{module}: {why}" for module, why in failed.items()]
        if self._unloaded.get(name, []) != texts:
            self._unloaded[name] = texts
            for text in texts:
                log.warning("environment %s cannot preload %s", name, text)
        if not texts:
            self._unloaded.pop(name, None)
            return ()
        return (f"not preloaded in {name}: {'; '.join(texts)}",)

    async def _launch_cold(self, spec: JailSpec, group: int | None, reason: str) -> Jail:
        """Start a session in a jail of its own."""
        try:
            jail = await self._cold.launch(spec, group)
        except (NoCopyError, NoWritableRootError) as error:
            # The common case comes first.
            raise error.in_place_of_a_fork(reason) from error
        if reason == CHANGING and (template := self._series_of(template_of(spec)).template):
            jail.template_pid = template.pid  # the jail may have some of the older files
        return jail

    async def _why_not_forked(self, spec: JailSpec, group: int | None) -> Jail | str:
        """Fork a session, or return why that fails."""
        plan = self._plans(spec, spec.rehearsed)
        if plan.impossible:
            return plan.impossible
        series = self._series_of(plan.template)
        if trio.current_time() < series.retry_s:
            return series.reason
        if series.template is not None and series.template.is_open and series.template.suspect:
            return CHANGING
        failures = series.failures
        try:
            jail = await self._fork(series, plan, group)
        except ShortageError as error:
            raise exhausted(OSError(0, str(error))) from error
        except (TemplateError, StartFailedError) as error:
            return self._failed(series, failures, error)
        try:
            changing = await self._is_changing(series)
        except BaseException:  # cancelled: nobody else knows of it
            await discard(jail)
            raise
        if changing:
            await discard(jail)
            return CHANGING
        series.failures = 0
        jail.policy = plan.policy
        if series.template is not None:
            remarks = self._note_unloaded(spec.environment, series.template.failed)
            if remarks or self._remarked.get(spec.environment.name):
                jail.remarks = partial(self._remark, spec.environment.name, remarks)
        return jail

    @staticmethod
    def _failed(
        series: _TemplateSeries, failures: int, error: TemplateError | StartFailedError
    ) -> str:
        """Note that there is no template; returns the reason. `failures` is the series' number
        of failures before the attempt.
        """
        reason = error.message if isinstance(error, StartFailedError) else str(error)
        if series.failures == failures:  # else others have failed with this one
            doublings = min(failures, _MOST_DOUBLINGS)
            pause_s = min(FIRST_PAUSE_S * 2.0**doublings, LONGEST_PAUSE_S)
            series.failures += 1
            series.retry_s = trio.current_time() + pause_s
            series.reason = reason
        return reason

    async def _fork(self, series: _TemplateSeries, plan: ForkPlan, group: int | None) -> Jail:
        template = await self._template(series, plan.template)
        try:
            return await template.fork(plan.request, group)
        except TemplateGoneError:
            # It was killed, or made room. If a new one ends as well, it is itself at fault.
            template.close()
        except ForkEndedError:
            pass  # otherwise all later siblings would start cold because of what hit one
        template = await self._template(series, plan.template)
        return await template.fork(plan.request, group)

    async def _template(self, series: _TemplateSeries, spec: TemplateSpec) -> Template:
        if series.template is not None and series.template.is_open:
            return series.template
        failures = series.failures
        async with series.starting:
            if series.failures > failures:  # others failed meanwhile: it would fail again
                raise TemplateError(series.reason)
            template = series.template
            if template is None or not template.is_open:
                async with self._starting:
                    self._make_room()
                    began_s = time.time()
                    template = await start_template(self._cold, spec, self._system_calls)
                    if template.files:
                        files = await trio.to_thread.run_sync(read_state, template.files)
                        template.state = files.state
                        if files.changed_s > began_s:
                            await _give_up(template)
                            raise TemplateError(CHANGING)
                series.template = template
                self._watch(template)
                records.keep(self._store, kept_template(template, self._made()))
            return template

    def _series_of(self, spec: TemplateSpec) -> _TemplateSeries:
        if (found := self._series.get(spec)) is not None:
            return found
        # Series of projects that come and go must not pile up.
        if len(self._series) > 4 * MAX_TEMPLATES:
            now = trio.current_time()
            self._series = {
                other: series
                for other, series in self._series.items()
                if (series.template and series.template.is_open)
                or series.retry_s > now
                or series.starting.locked()
            }
        found = self._series[spec] = _TemplateSeries()
        return found

    def _make_room(self) -> None:
        templates = self.templates
        if len(templates) >= MAX_TEMPLATES:
            min(templates, key=lambda template: template.used_s).close()

    def _note_reason(self, environment: Environment, reason: str) -> None:
        if self._reasons.get(environment.name) != reason:
            self._reasons[environment.name] = reason
            log.warning(
                "sessions of environment %s start in jails of their own: %s",
                environment.name,
                reason,
            )


async def _give_up(template: Template) -> None:
    """End a template that nobody forked or watches."""
    await discard(template.jail)
    os.close(template.pidfd)


def _nobody(_pid: int, _certain: bool) -> None:
    """Default for `changed`."""


@asynccontextmanager
async def open_templates(
    cold: BwrapLauncher,
    *,
    enabled: bool = True,
    entries: KeptEntries | None = None,
    uid: int = 0,
) -> AsyncGenerator[TemplateLauncher | BwrapLauncher]:
    """Open a launcher that forks if it can, or the given one if forking is impossible or off: then
    templates of an earlier supervisor end, too.

    Leaving ends all templates and their remaining sessions.
    """
    entries, system_calls = entries or KeptEntries(NoStore()), cold.system_calls
    if enabled and system_calls is None:
        log.warning("no table of system calls for %s: no templates", platform.machine())
    if not enabled or system_calls is None:
        entries.drop_kind(PREFIX)
        yield cold
        return
    async with open_source_watcher() as watcher, trio.open_nursery() as nursery:
        made = partial(made_of, system_calls, uid)
        launcher = TemplateLauncher(cold, system_calls, nursery, watcher, entries.store, made)
        launcher.take_up(entries)
        yield launcher
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_launcher(
    bwrap: BwrapLauncher,
    home: str,
    enforcement: Enforcement,
    *,
    templates: bool,
    entries: KeptEntries,
) -> AsyncGenerator[Launcher]:
    """Start the launcher of all sessions of a supervisor. `home` is for older artifacts
    (`nsmd.jail.artifact`).
    """
    bwrap.limits = replace(bwrap.limits, enforcement=enforcement)
    async with (
        bwrap.open_artifacts(home),
        open_templates(bwrap, enabled=templates, entries=entries, uid=bwrap.user.uid) as launcher,
    ):
        yield launcher
