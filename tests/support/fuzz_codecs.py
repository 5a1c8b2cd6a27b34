"""Parsers of untrusted bytes, each as a function that may raise nothing.

The first byte of what they are given says in which pieces the rest comes.

For Hypothesis (tests/fuzz/test_codecs.py) and for a coverage-guided fuzzer (tests/fuzz/guided.py).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from contextlib import suppress

from nsm.jsonlines import LineBuffer, TooLong
from nsm.transcripts.document import TranscriptError, read_transcript
from nsm.transcripts.notebook import notebook
from nsm.wire.errors import NsmError
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.messages import ClientConnection, Hello, ServerConnection
from nsmd.agent_link import frames
from nsmd.agent_link.frames import AgentProtocolError
from nsmd.config.config_file import ConfigError, parse
from nsmd.environments.artifacts import metadata
from nsmd.environments.artifacts.metadata import MetadataError
from nsmd.environments.nix.messages import NixLogReader
from nsmd.mcp import messages
from nsmd.mcp.attachment import parse_attach, parse_inherited
from nsmd.model.settings import Defaults
from sandbox.framing import FrameError, MessageReader

MAX_PIECES = 64


def from_client(data: bytes) -> None:
    """Parse a client's bytes on the control socket, cut by their own first byte."""
    connection = ServerConnection()
    try:
        for piece in _pieces(data):
            connection.receive_data(piece)
            while (message := connection.next_message()) is not None:
                assert message is not None
    except RemoteProtocolError:
        pass


def from_server(data: bytes) -> None:
    """Parse a server's bytes on the control socket."""
    connection = ClientConnection()
    connection.send(Hello(name="fuzz", program_version="0"))
    try:
        for piece in _pieces(data):
            connection.receive_data(piece)
            while connection.next_message() is not None:
                pass
    except (RemoteProtocolError, NsmError):
        pass


def from_agent(data: bytes) -> None:
    """Parse the bytes that come out of a jail."""
    reader = MessageReader()
    try:
        for piece in _pieces(data):
            reader.receive_data(piece)
            while (frame := reader.next_message()) is not None:
                frames.parse(frame)
                frames.sequence(frame)
    except (FrameError, AgentProtocolError):
        pass


def from_mcp_client(data: bytes) -> None:
    """Lines of JSON-RPC; whatever is refused can be told."""
    buffer = LineBuffer()
    for piece in _pieces(data):
        for line in buffer.feed(piece):
            if isinstance(line, TooLong):
                messages.encode(messages.too_long(line))
                continue
            if why := messages.why_too_complex(line):
                messages.encode(messages.misshapen(line, why))
                messages.encode(messages.misshapen_error(line, why))
                continue
            for message in messages.decode(line):
                if isinstance(message, messages.ErrorAnswer):
                    messages.encode(messages.error_message(message))


def attach_line(data: bytes) -> None:
    """The first two lines of an attachment."""
    with suppress(NsmError):
        parse_attach(data[1:])
    with suppress(NsmError):
        parse_inherited(data[1:], ("A", "B"))


def config_file(data: bytes) -> None:
    """`config.toml`."""
    with suppress(ConfigError):
        parse(data[1:], "config.toml")


def artifact_metadata(data: bytes) -> None:
    """`metadata.json`, and `NIX_SANDBOX_METADATA`."""
    with suppress(MetadataError):
        metadata.parse_file(data[1:], Defaults())
    with suppress(MetadataError):
        metadata.parse_variable(data[1:].decode(errors="surrogateescape"))


def nix_messages(data: bytes) -> None:
    """Parse the messages that nix writes while it builds."""
    reader = NixLogReader()
    for line in data[1:].splitlines():
        assert all(shown.isprintable() for shown in reader.read_line(line))
        assert reader.progress is not None


def transcript_file(data: bytes) -> None:
    """Read a transcript from a file, and make a notebook of it."""
    with suppress(TranscriptError):
        found = read_transcript(io.BytesIO(data[1:]))
        json.dumps(notebook(found), allow_nan=False)


CODECS: Mapping[str, Callable[[bytes], None]] = {
    codec.__name__.replace("_", "-"): codec
    for codec in (
        from_client,
        from_server,
        from_agent,
        from_mcp_client,
        attach_line,
        config_file,
        artifact_metadata,
        nix_messages,
        transcript_file,
    )
}


def _pieces(data: bytes) -> list[bytes]:
    """The bytes after the first, in pieces whose size the first says."""
    size = max(1, data[0] if data else 1, len(data) // MAX_PIECES)
    return [data[start : start + size] for start in range(1, len(data), size)]
