"""Storage of templates, which outlive the supervisor, and their take-over by the next one.

A template that consists of other programs than those installed now is closed: its forks live on,
and the next session is a fork of a new template.
"""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, cached_property

from nsm._version import __version__
from nsm.dataclass import dataclass, field
from nsmd.fdstore import records
from nsmd.fdstore.store import DescriptorStore
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
        try:
            records.keep(self._store, self.everything([template]))
        except TypeError as error:
            log.warning("%r would not outlive the supervisor: %s", template, error)

    def drop(self, template: Template) -> None:
        """Drop a template that can no longer be asked."""
        self._store.drop(_name_of(template))

    def everything(self, templates: Iterable[Template]) -> Iterator[tuple[str, Sequence[int]]]:
        for template in templates:
            channel = template.jail.socket.fileno()
            if channel < 0:  # it is being closed
                continue
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
            given = [channel, template.jail.pidfd, template.pidfd]
            yield from records.kept_entry(_name_of(template), record, *given)


def _name_of(template: Template) -> str:
    return f"{PREFIX}{template.pid}"


def made_of_record(
    record: TemplateRecord, descriptors: Sequence[int]
) -> tuple[Template | None, Collection[int]]:
    """Make the template of these descriptors, if it lives, with those that it uses."""
    pidfds = {fd: pid for fd in descriptors if (pid := pid_of(fd)) and not has_ended(fd)}
    jail = next((fd for fd, pid in pidfds.items() if pid == record.pid), None)
    forker = next((fd for fd, pid in pidfds.items() if pid != record.pid), None)
    channel = records.by_identity(descriptors).get(record.channel)
    if jail is None or forker is None or channel is None:
        return None, ()
    control = socket.socket(fileno=channel)
    control.setblocking(False)
    made = Jail(control, jail, record.pid, starter=record.starter)
    template = Template(record.spec, made, forker, failed=record.failed, imported=record.imported)
    template.files, template.state = record.files, record.state
    return template, (jail, forker, channel)
