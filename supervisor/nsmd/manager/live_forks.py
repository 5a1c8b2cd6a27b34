"""Forks of running sessions, for people and for calls of models: their names and owners."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError, ForkRefusedError
from nsm.wire.live import FORKED_FROM
from nsmd.manager.session_manager import Forks
from nsmd.model import names
from nsmd.model.limits import no_session, wrong_environment
from nsmd.model.values import RunRequest
from nsmd.sessions.session import Session

if TYPE_CHECKING:
    from nsmd.manager.run_service import RunService

MAX_FORKS = 16
"""Forks made at once: each takes 10 to 20 ms, for which the original stands still."""


class LiveForks:
    """Forks of sessions that run, with the names and labels that they get."""

    def __init__(self, run_service: RunService) -> None:
        self._run_service = run_service

    @property
    def possible(self) -> bool:
        """True if sessions may be forked here, as far as is known without a try."""
        return platform.machine() == "x86_64" and self._run_service.session_manager.has_templates

    async def fork(
        self,
        original: Session,
        wanted: Sequence[str],
        count: int,
        *,
        client: str,
        made_by: str = "",
    ) -> Forks:
        """Fork a live session once or several times.

        Raises:
            NsmError: that cannot be done; the original goes on as before.
        """
        tenancy = original.tenancy
        assert tenancy is not None, "a session that was asked for belongs to somebody"
        named = self._run_service.named
        if not 1 <= count <= MAX_FORKS:
            raise BadRequestError(
                f"1 to {MAX_FORKS} forks can be made at once, and {count} were asked for."
            )
        if len(wanted) > count:
            forks = "1 fork was" if count == 1 else f"{count} forks were"
            raise BadRequestError(
                f"{len(wanted)} names were given, and {forks} asked for.",
                hint="Leave out the count, or give at most as many names; other forks get names of "
                "their own.",
            )
        taken = dict.fromkeys(wanted)
        if len(taken) < len(wanted):
            raise BadRequestError("Two of the forks' names are the same.")
        for name in wanted:
            names.check(name)
            if named(tenancy.scope, name) is not None:
                raise BadRequestError(
                    f"There is a session {name!r} already.", hint="Choose another name, or none."
                )
        own = original.name or original.spec.environment.name

        def is_taken(name: str) -> bool:
            return name in taken or named(tenancy.scope, name) is not None

        while len(taken) < count:
            taken[names.fresh(own, is_taken)] = None
        labels = tuple(sorted({**dict(tenancy.labels), FORKED_FROM: original.id}.items()))
        of_forks = replace(tenancy, client=client, labels=labels, made_by=made_by)
        return await self._run_service.session_manager.fork(
            original, [replace(of_forks, name=name) for name in taken]
        )

    async def for_call(self, request: RunRequest, fork_of: str) -> RunRequest:
        """Fork a session for a call of a model; returns the call as it is for the fork."""
        client, service = request.client, self._run_service
        original = service.named(client.scope, fork_of)
        if original is None:
            raise no_session(fork_of)
        bound = original.spec.environment
        if request.env and request.env != bound.name:
            asked = service.provider.find(client, request.env)
            raise wrong_environment(fork_of, bound, asked)
        call_id = request.execution_id or ""
        if request.again and call_id:
            # The client lost its connection, perhaps after the fork.
            for known in service.session_manager.index.made_by(client.scope, call_id):
                return replace(request, session=known.name, env=bound.name, must_exist=True)
        if client.bound is not None:
            service.session_manager.check_share(client.scope)
        wanted = [] if request.session in (None, names.NEW) else [str(request.session)]
        try:
            made = await self.fork(original, wanted, 1, client=client.name, made_by=call_id)
        except ForkRefusedError as error:
            busy = original.running is not None or original.runs.queued
            hint = (
                "Call again when that has ended"
                if busy
                else f"Go on in {fork_of!r}, or make what you need of it in a new session"
            )
            raise ForkRefusedError(error.message, hint=f"{hint}. The code was not run.") from None
        (fork,) = made.sessions
        return replace(request, session=fork.name, env=bound.name, must_exist=True)
