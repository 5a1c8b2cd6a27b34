"""Storage of templates, which outlive the supervisor, and their take-over by the next one.

A template that consists of other programs than those installed now is closed: its forks live on,
and the next session is a fork of a new template.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property

from nsm._version import __version__
from nsm.dataclass import dataclass, field
from nsmd.fdstore import records
from nsmd.fdstore.records import RecordError
from nsmd.fdstore.store import DescriptorStore, Kept
from nsmd.host.processes import has_ended, pid_of
from nsmd.jail.arguments import TemplateSpec
from nsmd.jail.process import Jail
from nsmd.jail.program_code import AGENT, TEMPLATE, source_of
from nsmd.jail.templates.template import Template

log = logging.getLogger(__name__)

PREFIX = "template-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRecord:
    """One template, with the digest of its programs (`made_of`) and the identity of its control
    socket. `starter` is the process that made the jail, our child; 0 for none.
    """

    spec: TemplateSpec
    made_of: str
    pid: int
    starter: int
    channel: str
    failed: dict[str, str] = field(default_factory=dict[str, str])
    imported: dict[str, float] = field(default_factory=dict[str, float])
    files: tuple[str, ...] = ()
    state: str = ""


@cache
def read_programs() -> bytes:
    """Return the digest of the jails' programs, which are read only once."""
    digest = hashlib.sha256(__version__.encode())
    for program in (AGENT, TEMPLATE):
        digest.update(source_of(program))
    return digest.digest()


def made_of(system_calls: bytes, uid: int) -> str:
    """Digest of everything in a template that its specification does not contain."""
    return hashlib.sha256(read_programs() + system_calls + b"%d" % uid).hexdigest()


class TemplateStore:
    """Store of templates for the next supervisor."""

    def __init__(self, store: DescriptorStore, made: Callable[[], str]) -> None:
        self._store = store
        self._made_of = made

    @cached_property
    def made(self) -> str:
        """Digest of what templates are made of, besides their specifications."""
        return self._made_of()

    def __repr__(self) -> str:
        return f"<TemplateStore kept by {self._store.kind}>"

    def keep(self, template: Template) -> None:
        """Store a template that can be forked; if that fails, it is logged."""
        for name, descriptors in self.everything((template,)):
            if descriptors:
                self._store.keep(name, descriptors)
            else:
                log.warning("%r would not outlive the supervisor: no descriptor is free", template)

    def drop(self, template: Template) -> None:
        """Drop a template that can no longer be asked."""
        self._store.drop(_name_of(template))

    def everything(self, templates: Iterable[Template]) -> Iterator[tuple[str, Sequence[int]]]:
        for template in templates:
            channel = template.jail.socket.fileno()
            record = TemplateRecord(
                spec=template.spec,
                made_of=self.made,
                pid=template.pid,
                starter=template.jail.starter_pid,
                channel=records.identity(channel),
                failed=dict(template.failed),
                imported=dict(template.imported),
                files=tuple(template.files),
                state=template.state,
            )
            yield from records.kept_entry(
                _name_of(template), record, channel, template.jail.pidfd, template.pidfd
            )

    def taken_up(self, kept: Kept) -> Iterator[tuple[TemplateRecord, Template | None]]:
        """Take over the templates of an earlier supervisor. Yields each one's record, and the
        template itself if it lives. Dead ones are dropped.

        Descriptors in `kept` under our names are owned from now on.
        """
        for name, descriptors in kept.items():
            if not name.startswith(PREFIX):
                continue
            left = list(descriptors)
            template = None
            try:
                record = _record(left)
                template = _template(record, left)
                yield record, template
            except RecordError as error:
                log.warning("what was kept as %s cannot be read: %s", name, error)
            finally:
                for fd in left:
                    os.close(fd)
                if template is None:
                    self._store.drop(name)


def _name_of(template: Template) -> str:
    return f"{PREFIX}{template.pid}"


def close_all(kept: Kept) -> None:
    """End all templates of an earlier supervisor; their forks live on."""
    for name, descriptors in kept.items():
        if name.startswith(PREFIX):
            for fd in descriptors:
                os.close(fd)


def _record(left: list[int]) -> TemplateRecord:
    """Read the record among some descriptors."""
    found = None
    for fd in list(left):
        if (data := records.read_file(fd)) is not None:
            left.remove(fd)
            os.close(fd)
            found = records.decode(TemplateRecord, data)
    if found is None:
        raise RecordError("there is no record of it")
    return found


def _template(record: TemplateRecord, left: list[int]) -> Template | None:
    """Make the template from these descriptors, if it lives; used ones are removed from
    the list.
    """
    pidfds = {fd: pid for fd in left if (pid := pid_of(fd)) is not None and not has_ended(fd)}
    jail = next((fd for fd, pid in pidfds.items() if pid == record.pid), None)
    forker = next((fd for fd, pid in pidfds.items() if pid > 0 and pid != record.pid), None)
    channel = None
    for fd in left:
        with suppress(OSError):
            if records.identity(fd) == record.channel:
                channel = fd
    if jail is None or forker is None or channel is None:
        return None
    for fd in (jail, forker, channel):
        left.remove(fd)
    control = socket.socket(fileno=channel)
    control.setblocking(False)
    made = Jail(control, jail, record.pid, starter=record.starter)
    template = Template(record.spec, made, forker, failed=record.failed, imported=record.imported)
    template.files, template.state = record.files, record.state
    return template
