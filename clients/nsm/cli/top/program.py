"""The composition root of `nsm top` at a terminal: draws, asks, acts, reconnects."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from prompt_toolkit.application import Application
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from nsm.cli import main as cli
from nsm.cli.all_hosts import HERE
from nsm.cli.all_hosts import all_hosts as every_host
from nsm.cli.attach.screen import ENDING_SIGNALS, end_by, handled
from nsm.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from nsm.cli.render import formats
from nsm.cli.top.board import Action, Board, heading
from nsm.client.asynchronous import AsyncClient
from nsm.hosts.place import client_socket
from nsm.startup import start
from nsm.wire.errors import HostUnreachableError, NotRunningError, NsmError
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyPressEvent

    from nsm.wire.host import BoxRow
    from nsm.wire.sessions import SessionRow

CLIENT_NAME = "nsm top"

RETRY_S = 1.0
"""Pause between attempts to find a supervisor that restarts."""

SHARE = 9
"""Looking takes at most a tenth of the supervisor's time: so many times as long nobody looks."""

LONGEST_S = 30.0
"""Between looks all the same: a supervisor that was stopped for minutes is no slow one."""

ESCAPE_S = 0.05
"""After Esc, as long until it is known to be no part of another key's sequence."""

_STYLE = Style.from_dict(
    {
        "title": "bold",
        "header": "reverse",
        "running": "ansigreen",
        "selected": "reverse bold",
        "problem": "bold ansired",
        "keys": "ansibrightblack",
    }
)

_KEYS: dict[Keys | str, str] = {
    Keys.Up: "up",
    Keys.Down: "down",
    Keys.PageUp: "pageup",
    Keys.PageDown: "pagedown",
    Keys.Home: "home",
    Keys.End: "end",
    Keys.ControlM: "enter",
    Keys.ControlJ: "enter",
    Keys.Escape: "escape",
    Keys.ControlH: "backspace",
    Keys.ControlC: "c-c",
    Keys.ControlL: "c-l",
    Keys.ControlZ: "c-z",
}
"""By the board's names. Each is bound: prompt_toolkit keeps those from whoever wants any key."""


class Died(Exception):  # noqa: N818  # it is no error
    """A signal has ended us; `number` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def watch(
    *, order: str, wanted: str, reverse: bool, delay_s: float, all_hosts: bool = False
) -> int:
    """Show the table until the person leaves; returns the exit code. Order and choice as for
    `Board`."""
    board = Board(order, wanted, reverse=reverse)
    hosts: list[str | None] = [None]
    if all_hosts:
        hosts = [*every_host()]
    else:
        start.connect(client_socket(), autostart=False, again=True).close()
    while True:
        try:
            action = asyncio.run(TopScreen(board, delay_s, hosts).show())
        except Died as death:
            end_by(death.number)
            return EXIT_FAILED
        except EOFError:  # the terminal has gone
            return EXIT_FAILED
        if action.deed == "leave":
            return EXIT_OK
        _visit(action, board.host_of(action.session))


def _visit(action: Action, host: str) -> None:
    """Give the terminal to another verb until that ends."""
    if host:
        os.environ["NSM_HOST"] = "" if host == HERE else host
    options = {"attach": [], "logs": ["-f", "-n", "5"], "inspect": []}[action.deed]
    code = cli.main([action.deed, *options, action.session])
    sys.stdout.flush()
    if action.deed == "inspect" or code not in (EXIT_OK, EXIT_INTERRUPTED):
        with suppress(KeyboardInterrupt):
            sys.stderr.write("nsm: Enter goes back to the table ")
            sys.stderr.flush()
            sys.stdin.readline()


class HostAway(NamedTuple):
    """Reason for which a host shows no sessions. That nothing runs there is no problem."""

    text: str
    is_problem: bool


class TopScreen:
    """The table on the terminal, from one visit elsewhere to the next."""

    def __init__(self, board: Board, delay_s: float, hosts: Sequence[str | None] = (None,)) -> None:
        self._board = board
        self._delay_s = delay_s
        self._hosts = {"" if host is None else host or HERE: host for host in hosts}
        self._clients: dict[str, AsyncClient] = {}
        self._away: dict[str, HostAway] = {}
        self._asked_again_s: dict[str, float] = {}  # hosts that cannot be reached, and until when
        self._look_now = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        control = FormattedTextControl(self._text, focusable=True, show_cursor=False)
        self._app: Application[Action] = Application(
            Layout(Window(control, always_hide_cursor=True)),
            key_bindings=self._bindings(),
            style=_STYLE,
            full_screen=True,
            color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
        )
        self._app.ttimeoutlen = ESCAPE_S

    async def show(self) -> Action:
        """Draw and act until the person leaves or goes elsewhere; says where. A signal raises
        `Died`, a terminal that has gone EOFError."""
        handlers: dict[signal.Signals, Callable[[], object]] = {
            number: partial(self._die, number) for number in ENDING_SIGNALS
        }
        looking = asyncio.ensure_future(self._look())
        looking.add_done_callback(self._looked)
        try:
            with handled(handlers):
                return await self._app.run_async(handle_sigint=False)
        finally:
            for task in (looking, *self._tasks):
                task.cancel()
            for client in self._clients.values():
                await client.aclose()

    def _die(self, number: int) -> None:
        if self._app.is_running and not self._app.is_done:
            self._app.exit(exception=Died(number))

    def _looked(self, looking: asyncio.Future[None]) -> None:
        """Update the screen until an error of ours, which is then shown; never returns."""
        if not looking.cancelled() and (error := looking.exception()) is not None:
            self._app.exit(exception=error)

    # Looking.

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._look_now.clear()
            pause_s = RETRY_S
            asked_s = loop.time()
            rows: dict[str, list[SessionRow]] = {}
            boxes: list[BoxRow] = []
            for name in self._hosts:
                if self._asked_again_s.get(name, 0.0) > asked_s:
                    continue
                try:
                    client = await self._connected(name)
                    rows[name] = await client.sessions()
                    boxes += await client.boxes.list()
                    self._away.pop(name, None)
                except (NsmError, OSError) as error:
                    self._away[name] = await self._lost(name, error)
            if rows:
                now = loop.time()
                self._board.take_of_hosts(rows, now, boxes)
                pause_s = max(self._delay_s, min(SHARE * (now - asked_s), LONGEST_S))
            # A host where no supervisor runs has no sessions, and is no problem beside others.
            away = [each.text for each in self._away.values() if each.is_problem or not rows]
            self._board.away = "; ".join(away)
            self._app.invalidate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), pause_s)

    async def _connected(self, name: str) -> AsyncClient:
        """Return the client of a host, a new one if it was lost; two tasks may ask at the same
        time. The name is empty if there is only one host."""
        async with self._connecting:
            client = self._clients.get(name)
            if client is None:
                client = AsyncClient(
                    name=CLIENT_NAME,
                    host=self._hosts[name],
                    autostart=False,
                    reconnect=False,
                    project=None,
                )
                self._clients[name] = await client.__aenter__()
                self._begin(self._follow(name, client))
                status = await client.status()
                self._board.heading = (
                    f"{len(self._hosts)} hosts" if name else heading(status.version, status.pid)
                )
            return client

    async def _follow(self, name: str, client: AsyncClient) -> None:
        """Wait for the end of a connection: if it is not one that we closed, the next look is
        now.
        """
        await client.wait_lost()
        if client is self._clients.get(name):
            del self._clients[name]
            await client.aclose()
            self._look_now.set()

    async def _lost(self, name: str, error: NsmError | OSError) -> HostAway:
        """Close the connection to a host; returns what to show meanwhile."""
        client = self._clients.pop(name, None)
        if client is not None:
            await client.aclose()
        self._look_now.clear()  # it may have told so already; who hangs up is not asked at once
        none = isinstance(error, NotRunningError) and not isinstance(error, HostUnreachableError)
        if name:
            self._asked_again_s[name] = asyncio.get_running_loop().time() + LONGEST_S
            why = "no supervisor runs" if none else formats.visible(str(error))
            return HostAway(f"{name}: {why}", is_problem=not none)
        why = "none is running" if none else formats.visible(str(error))
        return HostAway(f"No supervisor: {why}. Looking for the next one.", is_problem=True)

    # Acting.

    def _act(self, action: Action) -> None:
        match action.deed:
            case "leave" | "attach" | "logs" | "inspect":
                self._app.exit(result=action)
            case "refresh":
                self._look_now.set()
            case "redraw":
                self._app.renderer.clear()
            case "suspend":
                self._app.suspend_to_background()
            case "kill" | "interrupt":
                self._begin(self._carry_out(action))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, action: Action) -> None:
        label = self._board.label_of(action.session)
        try:
            client = await self._connected(self._board.host_of(action.session))
            if action.deed == "kill":
                errors = (await client.kill(action.session)).errors
                message = errors[0].error.message if errors else f"Session {label} was ended."
            else:
                message = f"Nothing was running in {label}."
                if await client.interrupt(action.session):
                    message = f"What ran in {label} was interrupted."
        except (NsmError, OSError) as error:
            message = str(error)
        self._board.message = formats.visible(message)
        self._look_now.set()
        self._app.invalidate()

    # The terminal.

    def _text(self) -> StyleAndTextTuples:
        size = self._app.output.get_size()
        parts: StyleAndTextTuples = []
        for line in self._board.frame(size.columns, size.rows):
            # A bar reaches over the whole line.
            bar = line.style in ("header", "selected")
            space = " " * (size.columns - formats.columns(line.text)) if bar else ""
            parts += [(f"class:{line.style}", line.text + space), ("", "\n")]
        return parts[:-1]

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        def press(event: KeyPressEvent) -> None:
            action = self._board.press(_KEYS.get(event.key_sequence[0].key, event.data))
            if action is not None:
                self._act(action)

        for key in (*_KEYS, Keys.Any):
            bindings.add(key)(press)

        @bindings.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            self._board.paste(event.data)

        return bindings
