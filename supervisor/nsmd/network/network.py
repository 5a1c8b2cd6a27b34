"""The network of one session at present: its list, its proxy, its requests."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import trio

from nsm.jail.proxyvariables import PROXY_PORT, java_options, trust_variables, variables_with_port
from nsm.wire.errors import BadRequestError, NsmError
from nsmd.agent_link.frames import ListeningFrame, NamesFrame
from nsmd.agent_link.link import AgentLink, AgentLinkError
from nsmd.agent_link.requests import NoAnswerError, Question, Requests
from nsmd.jail.host import open_sockets
from nsmd.model.host_rules import AllowList, HostRule
from nsmd.model.policy import JAVA, jail_variables
from nsmd.model.values import Environment, NetworkMode, NetworkRule
from nsmd.network.gateway import Gateway
from nsmd.network.listener import ListenerError, NamespaceListener
from nsmd.network.named import NamedChannel, NamedError, rules_for_agent
from nsmd.network.session_proxy import SessionProxy

log = logging.getLogger(__name__)

LISTEN_TIMEOUT_S = 20.0
"""Time for an agent to make a socket, which takes microseconds once it has started."""


class SessionNetwork(SessionProxy):
    """Network of one session, by the rule at its start. The nursery owns the proxy's task, which
    ends with the session.

    The listener is the proxy's socket from an earlier supervisor, owned from now on. `changed` is
    called after a change of the list, or when there is a listener.
    """

    __slots__ = (
        "_changed",
        "_earlier_listener",
        "_environment",
        "_link",
        "_listening",
        "_names",
        "_nursery",
        "_opening",
        "_requests",
        "_scope",
        "_session_id",
    )

    def __init__(
        self,
        session_id: str,
        rule: NetworkRule,
        environment: Environment,
        *,
        gateway: Gateway,
        requests: Requests,
        nursery: trio.Nursery,
        listener: int | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(f"session {session_id}", rule, session_id, gateway=gateway)
        self._earlier_listener = listener
        self._changed = changed
        self._environment = environment
        self._listening: NamespaceListener | None = None
        self._session_id = session_id
        self._requests = requests
        self._nursery = nursery
        self._link: AgentLink | None = None
        self._scope: trio.CancelScope | None = None
        self._opening: trio.Event | None = None
        self._names: Question | None = None  # for the channel of connections to names

    def __repr__(self) -> str:
        return f"<SessionNetwork of {self._session_id} {self.mode} port={self._port}>"

    # For the session.

    def opened(self, link: AgentLink) -> None:
        """Begin the proxy, now that the agent can take work."""
        self._link = link
        if self._earlier_listener is not None:
            self._ask_for_names()
            self._begin(self._take_up)
        elif self.mode == "allow":
            self._start()
        elif self.mode == "full":
            self._problem = open_sockets() or ""

    def closed(self) -> None:
        """End the proxy, now that the agent is gone."""
        self._link = None
        if self._scope is not None:
            self._scope.cancel()
        else:
            self._close_earlier()

    async def get_secrets(self, names: Sequence[str]) -> None:
        """Have secrets read, and a helper ready for requests, before there is a jail."""
        secrets = self._gateway.secrets
        if secrets is None:
            return
        await secrets.wait_taken_up(self._session_id)
        if names or (self.rule.reads_requests and self.grant is None):
            await secrets.grant(self._session_id, names, self.rule)

    def drop_secrets(self) -> None:
        """Take its secrets from it: the session is over."""
        if self._gateway.secrets is not None:
            self._gateway.secrets.end(self._session_id)

    @property
    def listener_descriptor(self) -> int | None:
        """The socket on which its proxy waits, or will wait soon; None if there is none."""
        return self._earlier_listener if self._listening is None else self._listening.descriptor

    async def allow(self, rules: Iterable[HostRule]) -> None:
        """Allow further hosts from now on."""
        self._check_not_full()
        allowed = self._allowed.with_rules(rules)
        await self._ensure_open()
        self.set("allow", allowed)

    def deny(self, rules: Sequence[HostRule]) -> None:
        """Remove patterns; connections that are no longer allowed end."""
        self._check_not_full()
        for rule in rules:
            if rule.text not in self._allowed.texts:
                raise BadRequestError(
                    f"{rule.text!r} is not in this session's list, which has "
                    f"{', '.join(self._allowed.texts) or 'nothing'}.",
                    hint="Remove the pattern that allows it.",
                )
        self.set(self.mode, self._allowed.without(rules))

    def turn_off(self) -> None:
        """Allow nothing; all connections end."""
        self._check_not_full()
        self.set("off", AllowList())

    def _check_not_full(self) -> None:
        if self.mode == "full":
            raise BadRequestError(
                "This session was started with the host's network, which holds until its end.",
                hint="End it, and start one with another network.",
            )

    def set(self, mode: NetworkMode, allowed: AllowList) -> None:
        super().set(mode, allowed)
        if self._names is not None and self._link is not None:
            with suppress(AgentLinkError):  # its reader notices
                self._link.post({"type": "hosts", "rules": rules_for_agent(allowed)})
        self._changed()

    # The proxy.

    async def _ensure_open(self) -> None:
        if self._port is None:
            self._start()
            if self._opening is not None:
                await self._opening.wait()
        if self._port is None:
            raise BadRequestError(
                f"This session cannot have more: {self._problem or 'it has ended'}.",
                hint="Start another session.",
            )

    def _start(self) -> None:
        """Ask for a listener at once: code that is sent after this finds it."""
        if self._opening is not None or self._link is None:
            return
        grant = self.grant
        frame: dict[str, object] = {
            "type": "listen",
            "id": self._requests.new_id(),
            "port": PROXY_PORT,
        }
        certificate = self._gateway.certificates + (grant.certificate if grant else "")
        trusted = "{certificates}" if certificate else ""
        variables = variables_with_port()
        own = dict(jail_variables(self._environment, NetworkRule(mode="full")))
        variables[JAVA] = java_options(own.get(JAVA, ""), trusted=trusted)
        if certificate:
            variables |= trust_variables(trusted)
            variables |= grant.variables if grant is not None else {}
            frame["certificate"] = certificate
        frame["variables"] = variables
        try:
            question = self._requests.begin("listen", frame, (ListeningFrame,))
        except NsmError as error:
            self._note_problem(error.message)
            return
        self._ask_for_names()
        self._begin(partial(self._listener, self._link, question))

    def _ask_for_names(self) -> None:
        """Have the session's programs find the hosts of the list by name, if its agent can."""
        frame = {
            "type": "names",
            "id": self._requests.new_id(),
            "rules": rules_for_agent(self._allowed),
            "known": [*(self.known_names or ())],
        }
        with suppress(NsmError):
            self._names = self._requests.begin("names", frame, (NamesFrame,))

    async def _named_channel(self, link: AgentLink, question: Question) -> NamedChannel:
        return NamedChannel(await _passed_descriptor(link, question, NamedError))

    async def _take_up(self) -> NamespaceListener:
        """Continue with the existing listener: the session's code knows it already."""
        descriptor, self._earlier_listener = self._earlier_listener, None
        assert descriptor is not None
        return NamespaceListener(descriptor)

    def _close_earlier(self) -> None:
        descriptor, self._earlier_listener = self._earlier_listener, None
        if descriptor is not None:
            os.close(descriptor)

    def _begin(self, find: Callable[[], Awaitable[NamespaceListener]]) -> None:
        self._problem = ""
        opening, scope = self._opening, self._scope = trio.Event(), trio.CancelScope()
        self._nursery.start_soon(self._run, find, opening, scope, name=repr(self))

    async def _run(
        self,
        find: Callable[[], Awaitable[NamespaceListener]],
        opening: trio.Event,
        scope: trio.CancelScope,
    ) -> None:
        """Own the listener from the request for it to the session's end."""
        listener: NamespaceListener | None = None
        try:
            with scope:
                listener = await find()
                self._port = listener.port
                self._listening = listener
                opening.set()
                self._changed()
                link, asked = self._link, self._names
                named = partial(self._named_channel, link, asked) if link and asked else None
                await self.accept(listener, named)
        except NsmError as error:
            if self._link is not None:
                self._note_problem(error.message)
        except ListenerError as error:
            self._note_problem(f"its socket {error}")
        finally:
            self._listening = None
            self._close_earlier()  # it ended before it began
            if listener is not None:
                listener.close()
            self._port = self._opening = None
            opening.set()

    def _note_problem(self, problem: str) -> None:
        self._problem = f"there is no proxy: {problem}"
        log.warning("session %s has no proxy: %s", self._session_id, problem)

    @staticmethod
    async def _listener(link: AgentLink, question: Question) -> NamespaceListener:
        return NamespaceListener(await _passed_descriptor(link, question, ListenerError))


async def _passed_descriptor(link: AgentLink, question: Question, error: type[Exception]) -> int:
    """Wait for the descriptor that comes with an answer of the agent; else raise this error."""
    try:
        await question.wait(LISTEN_TIMEOUT_S)
    except NoAnswerError:
        raise error("was not made in time") from None
    descriptor = link.claim_descriptor(question.id)
    if descriptor is None:
        raise error("did not come with the answer")
    return descriptor
