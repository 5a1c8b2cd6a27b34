"""The shim's connection to a supervisor: how it attaches, and what is on its way there.

Standard library only, and no `typing`: see `nsm.shim`.
"""

from __future__ import annotations

import os

from nsm import jsonlines
from nsm._version import program_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

ATTACH_TIMEOUT_S = 60.0
"""Time limit for the supervisor's answer to the first line: a new one imports its MCP package
first.
"""

MAX_ATTACH_ANSWER_BYTES = 64 * 1024

VARIABLES = (
    "PROJECT_DIR",
    "PROJECT_MOUNT",
    "PROJECT_MODE",
    "CLAUDE_PROJECT_DIR",
    "NIX_SANDBOX_ENVS",
    "NIX_SANDBOX_DIR",
    "NIX_SANDBOX_METADATA",
    "SESSION_IDLE_TIMEOUT",
    "SESSION_MAX_LIFETIME",
    "NSM_SCOPE",
    "NSM_BRIDGE",
    "NSM_SOCKET",
    "NSM_AUTOSTART",
)
"""The variables of a client entry that are told to the supervisor; others only if it asks, which
it does for those that `[project.inherit_env]` of its configuration names."""

_BEGINNING = b'{"nsm": '
"""Beginning of a supervisor's answer."""

_CHUNK_BYTES = 65536


class AttachError(Exception):
    """The supervisor does not take this client; the message says why and what to do."""


class AttachLostError(AttachError):
    """The supervisor ended before it answered."""

    def __init__(self) -> None:
        super().__init__(
            "the supervisor ended before it took this client: its log says more, `nsm doctor` says "
            "where that is."
        )


class SupervisorConnection:
    """The connection to one supervisor.

    Attributes:
        queued, sent: bytes given to `queue`, and those of them that the kernel has taken.
        numbered: the supervisor knows calls by the numbers of their lines, and can be asked again.
        instance: the supervisor's, if it told one.
        ending: it has said that it ends, and all that it has.
    """

    def __init__(
        self, connection: socket.socket, received: bytes, *, numbered: bool, instance: str = ""
    ) -> None:
        self.numbered = numbered
        self.instance = instance
        self.ending = False
        self.connection = connection
        self.lines = jsonlines.LineBuffer()
        self.early = received  # came with the answer to the attach line
        self.pending = bytearray()
        self.queued = 0
        self.sent = 0

    def queue(self, line: bytes) -> None:
        """Send a line when the supervisor takes it."""
        self.pending += line + b"\n"
        self.queued += len(line) + 1

    def flush(self) -> None:
        """Send what the kernel takes now; drop it if nobody will read it.

        A supervisor that is gone may have answered some calls first: its end is told by reading,
        behind those answers, and not here.
        """
        try:
            sent = self.connection.send(self.pending[:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except OSError:
            self.pending.clear()
            return
        self.sent += sent
        del self.pending[:sent]


def attach(connection: socket.socket, attachment_id: str) -> SupervisorConnection:
    """Introduce this client to the supervisor on a fresh connection.

    Args:
        attachment_id: the same for all connections of this client, and for no other's; hex.

    Raises:
        AttachError: it refused, or did not answer as a supervisor does.
        OSError: the connection broke.
    """
    try:
        connection.settimeout(ATTACH_TIMEOUT_S)
        connection.sendall(_attach_line(attachment_id))
        line, rest = _first_line(connection)
        answer = _check_attached(line)
        wanted: list[object] | object = answer.get("inherit")
        if isinstance(wanted, list):
            connection.sendall(_inherited_line(wanted))  # pyright: ignore[reportUnknownArgumentType]
        connection.setblocking(False)
    except TimeoutError:
        connection.close()
        raise AttachError(
            f"the supervisor did not answer within {ATTACH_TIMEOUT_S:.0f} s. It is stopped or "
            "overloaded: its log says more, `nsm doctor` says where that is."
        ) from None
    except (BrokenPipeError, ConnectionResetError):
        connection.close()
        raise AttachLostError from None
    except BaseException:
        connection.close()
        raise
    return SupervisorConnection(
        connection,
        rest,
        numbered=answer.get("numbered") is True,
        instance=str(answer.get("instance") or ""),
    )


def _first_line(connection: socket.socket) -> tuple[bytes, bytes]:
    received = bytearray()
    while (end := received.find(b"\n")) < 0:
        chunk = connection.recv(_CHUNK_BYTES)
        received += chunk
        if not chunk and _BEGINNING.startswith(received[: len(_BEGINNING)]):
            raise AttachLostError  # before its answer, or in the middle of it
        if not chunk or len(received) > MAX_ATTACH_ANSWER_BYTES:
            raise AttachError(
                "the program on the socket did not answer as a supervisor does. "
                "Run `nsm doctor`; `nsm shutdown` ends an older supervisor."
            )
    return bytes(received[:end]), bytes(received[end + 1 :])


def _attach_line(attachment_id: str) -> bytes:
    try:
        cwd = os.getcwd()
    except OSError:  # deleted
        cwd = None
    more: dict[str, object] = {}
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if os.environ.get("NSM_HOST"):
        from nsm.hosts.place import entry_there  # noqa: PLC0415  # most shims stay here

        variables, cwd = entry_there(variables, cwd)
        more["resumes"] = True  # the end of a connection does not mean our end
    attach = {
        "id": attachment_id,
        "program_version": program_version(),
        "variables": variables,
        "cwd": cwd,
        "pid": os.getpid(),
        "inherits": True,
        **more,
    }
    return jsonlines.dump({"nsm": 1, "attach": attach}) + b"\n"


def _inherited_line(names: list[object]) -> bytes:
    """The values of further variables: those that the supervisor's configuration names."""
    environ = os.environ
    values = {name: environ[name] for name in names if isinstance(name, str) and name in environ}
    return jsonlines.dump({"nsm": 1, "inherited": values}) + b"\n"


def _check_attached(line: bytes) -> dict[str, object]:
    """The supervisor's answer, if it takes this client."""
    try:
        answer = jsonlines.first_member(jsonlines.parse(line))
    except ValueError:
        answer = {}
    if answer.get("nsm") != 1:
        raise AttachError("the program on the socket is not an nsm supervisor. Run `nsm doctor`.")
    if answer.get("ok") is not True:
        error = jsonlines.first_member(answer.get("error"))
        reason = error.get("message") or "the supervisor refused this client"
        raise AttachError(f"{reason} {error.get('hint') or ''}".rstrip())
    return answer
