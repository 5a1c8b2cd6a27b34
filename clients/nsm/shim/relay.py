"""The pipe of `nsm-mcp`: lines between the client and the supervisor, until the client is gone.

MCP itself is served by the supervisor. The relay knows as much JSON-RPC as it takes to have another
supervisor answer for one that is gone, or to answer for it: which requests are under way, and how
the client introduced itself.

One thread, one `poll` over three descriptors, no busy waiting. What waits to be written is bounded:
beyond `HIGH_WATER_BYTES` the side that it comes from is not read.
"""

from __future__ import annotations

import os
import select
import time

from nsm import jsonlines
from nsm.shim.link import AttachLostError, SupervisorConnection, attach
from nsm.startup import start


class UnansweredRequest:
    """A request that has no answer yet.

    Attributes:
        end: the byte of the link's stream with which it ended.
        line: it; None where it must not be sent again.
        number: number of its line, by which the supervisor knows it.
        began_s: when it came, on the monotonic clock.
        losses: supervisors that ended meanwhile.
        sent_to: instances of the supervisors that it may have arrived at.
    """

    __slots__ = ("began_s", "end", "line", "losses", "method", "number", "sent_to")

    def __init__(self, method: str, end: int, line: bytes | None, number: int) -> None:
        self.method = method
        self.end = end
        self.line = line
        self.number = number
        self.began_s = time.monotonic()
        self.losses = 0
        self.sent_to: set[str] = set()


def marked(call: UnansweredRequest, link: SupervisorConnection, *, arrived: bool) -> bytes | None:
    """The line that sends a request to another supervisor than the first, which may have got it and
    have run its code (`arrived`); None if that supervisor could not tell a repeated request from a
    new one."""
    line = call.line
    if line is None:
        return None
    if not link.numbered:
        return None if arrived and call.method == "tools/call" else line
    if arrived and call.method == "tools/call":
        # A supervisor that is the only one it was sent to knows whether it ever arrived.
        known = call.sent_to == {link.instance} and link.instance
        sent_to = b"@" + link.instance.encode() if known else b""
        return b"%d+%.3f%b %b" % (call.number, time.monotonic() - call.began_s, sent_to, line)
    return b"%d %b" % (call.number, line)


TYPE_CHECKING = False  # `typing` itself takes 8 ms to import; checkers know this name
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    Connect = Callable[[float], socket.socket]
    Message = dict[str, object]

HIGH_WATER_BYTES = 1024 * 1024
"""Bytes that may wait for a slow reader; one line more can come on top."""

DRAIN_S = 5.0
"""After the client's end-of-file, how long calls under way may still be answered. Clients that
close stdin and wait do so for 2 s, then send SIGTERM; pipelines in a shell wait as long as it takes
to start a supervisor."""

CALL_DRAIN_S = 0.7
"""The same where only tool calls are under way. They may take minutes, and their code goes on when
the client has ended."""

HELD_BYTES = 32 * 1024 * 1024
"""Largest size of requests under way that are kept for another supervisor. Further ones are
reported as lost with their supervisor.
"""

MAX_LOSSES = 100
"""Supervisors that may end during one request, which could be why they do."""

_TRIES = 3
"""Attempts to attach when there is no hurry."""

PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR = -32700, -32600, -32603  # JSON-RPC 2.0, section 5.1

_LISTEN = "subscriptions/listen"
_CHUNK_BYTES = 65536
_PIPE_BYTES = 4096  # PIPE_BUF: what a pipe that polls writable takes without blocking (pipe(7))


class Relay:
    """Moves lines between the client and the supervisor until the client is gone.

    Args:
        stdin, stdout: the client's descriptors.
        connect: gives a connection to the supervisor, or raises what says why not. Its argument is
            for how many seconds it should go on trying.
        drain_s: as `DRAIN_S`.
        prepare: what a tool call needs first; returns why that cannot be, or nothing.
    """

    def __init__(
        self,
        stdin: int,
        stdout: int,
        connect: Connect,
        *,
        drain_s: float = DRAIN_S,
        prepare: Callable[[], str] | None = None,
    ) -> None:
        self._prepare = prepare
        self._id = os.urandom(16).hex()
        self._stdin = stdin
        self._stdout = stdout
        self._connect = connect
        self._drain_s = drain_s
        self._lines = jsonlines.LineBuffer()
        self._to_client = bytearray()
        self._stdin_open = True
        self._client_gone = False
        self._deadline = 0.0  # of draining, once stdin is closed
        self._link: SupervisorConnection | None = None
        self._exit_code: int | None = None  # set when there is nothing left but to flush
        self._calls: dict[int | str, UnansweredRequest] = {}
        self._held = 0  # bytes of their lines
        self._lines_numbered = 0
        self._initialize: tuple[int | str, bytes] | None = None
        self._initialized: bytes | None = None
        self._replayed: int | str | None = None  # id of the answer that the client has already

    def run(self) -> int:
        """Relay; return the exit code."""
        failure = self._open_link(replay=False)
        if failure:
            say(failure)
        while not self._finished():
            for descriptor, events in self._poll():
                if descriptor == self._stdout:
                    self._write_client(events)
                elif descriptor == self._stdin:
                    self._read_client(failure)
                elif self._link is not None:
                    self._serve_link(self._link, events)
        if self._link is not None:
            self._link.connection.close()  # else Python may complain to whoever reads the log
        return 1 if failure else self._exit_code or 0

    # The loop.

    def _finished(self) -> bool:
        if self._client_gone:
            return True
        flushed = not self._to_client
        if self._exit_code is not None and flushed:
            return True
        if self._stdin_open:
            return False
        unsent = self._link is not None and self._link.pending
        return (flushed and not self._calls and not unsent) or time.monotonic() >= self._deadline

    def _poll(self) -> list[tuple[int, int]]:
        # A descriptor that must not be read is left out altogether: its hang-up would be
        # reported again and again, and make this a busy loop.
        poller = select.poll()
        poller.register(self._stdout, select.POLLOUT if self._to_client else 0)
        room = len(self._to_client) < HIGH_WATER_BYTES
        link = self._link
        # Before stdin: a request must not go to a supervisor that is known to be gone.
        if link is not None and (room or link.pending):
            wanted = (select.POLLIN if room else 0) | (select.POLLOUT if link.pending else 0)
            poller.register(link.connection.fileno(), wanted)
        if self._stdin_open and room and (link is None or len(link.pending) < HIGH_WATER_BYTES):
            poller.register(self._stdin, select.POLLIN)
        if self._stdin_open:
            return poller.poll()
        return poller.poll(max(0, (self._deadline - time.monotonic()) * 1000))

    def _write_client(self, events: int) -> None:
        try:
            if events & select.POLLOUT and self._to_client:
                written = os.write(self._stdout, self._to_client[:_PIPE_BYTES])
                del self._to_client[:written]
            elif events & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                self._client_gone = True
        except BlockingIOError:
            return
        except OSError:
            self._client_gone = True

    def _read_client(self, failure: str) -> None:
        try:
            chunk = os.read(self._stdin, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        lines = self._lines.feed(chunk)
        if not chunk:
            self._stdin_open = False
            # A stream of changes has no end that anybody would wait for.
            for known in [k for k, call in self._calls.items() if call.method == _LISTEN]:
                self._forget(known)
            self._deadline = time.monotonic() + self._drain_s
            self._shorten_drain()
            lines = [self._lines.rest()]  # a last line may lack its end
        for line in lines:
            if failure:
                self._refuse(line, failure)
            else:
                self._take_client_line(line)

    def _serve_link(self, link: SupervisorConnection, events: int) -> None:
        try:
            if events & select.POLLOUT and link.pending:
                link.flush()
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                chunk = link.connection.recv(_CHUNK_BYTES)
                self._take_server_bytes(link, chunk)
                if not chunk:
                    self._lose_link()
        except BlockingIOError:
            return
        except OSError:
            self._lose_link()

    # From the client.

    def _take_client_line(self, line: bytes | jsonlines.TooLong) -> None:
        if isinstance(line, jsonlines.TooLong):
            self._answer_too_long(line)
            return
        if not line.strip():
            return
        try:
            messages = jsonlines.members(jsonlines.parse(line))
        except ValueError as error:
            self._answer_error(jsonlines.unread_id(line), PARSE_ERROR, f"Parse error: {error}")
            return
        requests = [
            (known, method)
            for message in messages
            if (known := jsonlines.request_id(message)) is not None
            and isinstance(method := message.get("method"), str)
        ]
        if len(messages) == len(requests) == 1 and (known := requests[0][0]) in self._calls:
            self._answer_error(
                known, INVALID_REQUEST, f"Invalid request: id {str(known)[:80]!r} is in use"
            )
            return
        if self._prepare is not None and any(method == "tools/call" for _, method in requests):
            failure = self._prepare()
            if failure:
                for known, method in requests:
                    self._answer_failure(known, method, f"nsm: {failure}\nThe code was not run.")
                return
        if self._link is None and requests:
            failure = self._open_link(replay=requests[0][1] != "initialize")
            if failure:
                say(failure)
                for known, method in requests:
                    self._answer_failure(known, method, f"nsm: {failure}\nThe code was not run.")
                return
        if self._link is None:
            return  # nobody is left whom a notification or an answer could concern
        self._send(self._link, line, requests)
        for message in messages:
            self._note(message, line)

    def _send(
        self, link: SupervisorConnection, line: bytes, requests: list[tuple[int | str, str]]
    ) -> None:
        # A batch, which one revision had, could be answered in part: it is sent once.
        single = len(requests) == 1 and line.lstrip()[:1] == b"{"
        held = line if single and self._held + len(line) <= HELD_BYTES else None
        if held is not None:
            self._lines_numbered += 1
        number = self._lines_numbered
        link.queue(b"%d %b" % (number, line) if held is not None and link.numbered else line)
        for known, method in requests:
            self._forget(known)
            self._calls[known] = UnansweredRequest(method, link.queued, held, number)
        self._held += len(held or b"")

    def _forget(self, known: int | str) -> None:
        call = self._calls.pop(known, None)
        if call is not None:
            self._held -= len(call.line or b"")

    def _note(self, message: Message, line: bytes) -> None:
        """Remember how the client introduced itself, and forget what it no longer waits for."""
        method = message.get("method")
        if method == "initialize":
            known = jsonlines.request_id(message)
            self._initialize = (known, line) if known is not None else None
            self._initialized = None
        elif method == "notifications/initialized":
            self._initialized = line
        elif method == "notifications/cancelled":
            cancelled = jsonlines.first_member(message.get("params")).get("requestId")
            known = jsonlines.request_id({"id": cancelled})
            if known is not None:
                self._forget(known)  # a cancelled request is not answered

    def _refuse(self, line: bytes | jsonlines.TooLong, failure: str) -> None:
        """Answer while there was no supervisor from the start; then end.

        A client of the newest revision asks `server/discover` first and, refused, introduces
        itself the older way: it shows people what that is answered.
        """
        if isinstance(line, jsonlines.TooLong):
            return
        try:
            messages = jsonlines.members(jsonlines.parse(line)) if line.strip() else []
        except ValueError:
            messages = []
        for message in messages:
            known, method = jsonlines.request_id(message), message.get("method")
            if known is not None and isinstance(method, str):
                self._answer_failure(known, method, f"nsm: {failure}")
                if method != "server/discover":
                    self._exit_code = 1

    # From the supervisor.

    def _take_server_bytes(self, link: SupervisorConnection, chunk: bytes) -> None:
        for line in link.lines.feed(chunk):
            if not line:  # parts what was torn from what it has to say at its end
                continue
            if isinstance(line, jsonlines.TooLong):
                say(f"the supervisor sent a line of {line.size} bytes; it is left out")
                continue
            try:
                messages = jsonlines.members(jsonlines.parse(line))
            except ValueError as error:
                say(f"the supervisor sent a line that is not JSON ({error}); it is left out")
                continue
            if len(messages) == 1 and "nsm" in messages[0]:
                link.ending = True
                continue
            answered = [
                jsonlines.request_id(message) for message in messages if "method" not in message
            ]
            if self._replayed is not None and self._replayed in answered:
                self._replayed = None
                continue
            for known in answered:
                if known is not None:
                    self._forget(known)
            self._to_client += line + b"\n"
        if not self._stdin_open:
            self._shorten_drain()

    def _shorten_drain(self) -> None:
        """Wait no longer than `CALL_DRAIN_S` once only tool calls are left to be answered."""
        if all(call.method == "tools/call" for call in self._calls.values()):
            self._deadline = min(self._deadline, time.monotonic() + CALL_DRAIN_S)

    # The link comes and goes.

    def _open_link(self, *, replay: bool, patience_s: float = 0.0) -> str:
        """Connect and attach; return why not, or nothing. `replay`: the client has introduced
        itself before."""
        try:
            link = self._attached(patience_s)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client is told
            return str(error) or type(error).__name__  # empty would mean that all is well
        self._link = link
        if replay and self._initialize is not None:
            self._replayed, line = self._initialize
            link.queue(line)
        if replay and self._initialized is not None:
            link.queue(self._initialized)
            # Another supervisor may have other environments.
            self._send_client({"method": "notifications/tools/list_changed"})
        self._take_server_bytes(link, link.early)
        return ""

    def _attached(self, patience_s: float) -> SupervisorConnection:
        deadline = time.monotonic() + patience_s
        attempt = 0
        while True:
            try:
                return attach(self._connect(max(0.0, deadline - time.monotonic())), self._id)
            except AttachLostError:  # that one was ending, too
                attempt += 1
                if attempt > _TRIES and time.monotonic() >= deadline:
                    raise

    def _lose_link(self) -> None:
        """The supervisor is gone: have another one answer, or answer for it."""
        link, self._link = self._link, None
        if link is None:
            return
        link.connection.close()
        self._replayed = None
        calls, self._calls, self._held = self._calls, {}, 0
        for call in calls.values():
            call.losses += 1
        left, failure = calls, ""
        if link.numbered and not link.ending:
            left, failure = self._ask_again(link, calls)
        if self._initialize is not None and self._initialize[0] in left:
            self._initialize = None  # answered below; the client has to begin again
        for known, call in left.items():
            text = _LOST if call.end <= link.sent else _NOT_SENT
            self._answer_failure(known, call.method, f"nsm: {failure}\n{text}" if failure else text)

    def _ask_again(
        self, lost: SupervisorConnection, calls: dict[int | str, UnansweredRequest]
    ) -> tuple[dict[int | str, UnansweredRequest], str]:
        """Have another supervisor answer what the lost one has not. Returns what it cannot answer;
        and why there is none, if there is none."""
        again = {
            known: call
            for known, call in calls.items()
            if call.line is not None and call.losses <= MAX_LOSSES
        }
        if not again:
            return calls, ""
        patience_s = start.KEPT_S
        if not self._stdin_open:
            patience_s = min(patience_s, max(0.0, self._deadline - time.monotonic()))
        introduced = self._initialize is not None and self._initialize[0] not in again
        failure = self._open_link(replay=introduced, patience_s=patience_s)
        link = self._link
        if failure or link is None:
            say(failure)
            return calls, failure
        left = {known: call for known, call in calls.items() if known not in again}
        for known, call in again.items():
            arrived = call.end <= lost.sent
            if arrived:
                call.sent_to.add(lost.instance)
            line = marked(call, link, arrived=arrived or bool(call.sent_to))
            if line is None:
                left[known] = call
                continue
            link.queue(line)
            call.end = link.queued
            self._calls[known] = call
            self._held += len(call.line or b"")
        return left, ""

    # Answers of our own.

    def _answer_failure(self, known: int | str, method: str, text: str) -> None:
        if method == "tools/call":  # an error inside the result is what a model gets to read
            result = {
                "content": [{"type": "text", "text": text}],
                "isError": True,
                "resultType": "complete",
            }
            self._send_client({"id": known, "result": result})
        else:
            self._answer_error(known, INTERNAL_ERROR, text)

    def _answer_error(self, known: int | str | None, code: int, text: str) -> None:
        self._send_client({"id": known, "error": {"code": code, "message": text}})

    def _answer_too_long(self, line: jsonlines.TooLong) -> None:
        outline = jsonlines.outline(line)
        known, method = jsonlines.request_id(outline), outline.get("method")
        text = (
            f"The message has {line.size:,} bytes; the limit is {jsonlines.MAX_LINE_BYTES:,}, and "
            "8 MiB for code. The code was not run. Write large data to a file in a session in "
            "several calls, or read it from the project directory."
        )
        if known is not None and method == "tools/call":
            self._answer_failure(known, "tools/call", text)
        else:
            self._answer_error(known, INVALID_REQUEST, text)

    def _send_client(self, message: Message) -> None:
        self._to_client += jsonlines.dump({"jsonrpc": "2.0", **message}) + b"\n"


_LOST = (
    "The nsm supervisor ended while this call was under way: whether its code ran, and how far, "
    "is unknown. Sessions may have ended with the supervisor, with their variables and "
    "/workspace. Check what was done before running the code again; the next call connects again."
)
_NOT_SENT = (
    "The nsm supervisor ended before it was given this call: the code was not run. Sessions may "
    "have ended with the supervisor. Call again: the next call connects again."
)


def say(text: str) -> None:
    """Tell whoever reads the client's log."""
    try:
        os.write(2, f"nsm-mcp: {text}\n".encode("utf-8", "replace"))
    except OSError:
        return
