"""nsm among the MCP servers of an agent in a box, each in its own way.

Claude Code and Gemini CLI keep their servers in a file of their directory, which is the box's own
and kept between boxes: an entry is added there, all else in the file stays. Whoever was in a box
may have left anything in that directory, so it is read as a stranger's. Codex takes entries as
arguments, opencode in a variable.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import cast

from nsm.dataclass import dataclass
from nsmbox.host.nsm_itself import MCP_PROGRAM, variables
from nsmbox.model.plan import RULES_FILE

NAME = "nsm"
"""Name of the server in the agent's entry."""

MAX_FILE_BYTES = 16 * 1024 * 1024
"""Claude Code's own, with the histories of many projects, has a few MB. Of what somebody else has
written, each byte may take 30 of memory here."""

_PROGRAM_NAME = "nsm-mcp"

_TRIES = 3
"""Attempts with a file that another box changes meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConfigFormat:
    """An agent that keeps its servers in a file, as `mcpServers`."""

    agent: str
    file: str
    entry: dict[str, object]


_FORMATS = {
    "claude": McpConfigFormat(
        agent="Claude Code",
        file=".claude.json",  # there with CLAUDE_CONFIG_DIR, else in HOME
        entry={"type": "stdio", "args": [], "env": {}},
    ),
    "gemini": McpConfigFormat(agent="Gemini CLI", file="settings.json", entry={"args": []}),
}

KINDS = (*_FORMATS, "codex", "opencode")
"""Kinds of profiles whose agents get an entry for nsm."""


class _UnusableError(Exception):
    """The file is not what its agent writes; the message says how."""


def arguments(kind: str) -> tuple[str, ...]:
    """Return the arguments that add nsm to an agent; they go before the user's."""
    if kind != "codex":
        return ()
    # Values are TOML. Codex gives its servers next to no variables by itself.
    given = ", ".join(f"{v.name} = {json.dumps(v.value)}" for v in variables())
    return (
        "-c",
        f"mcp_servers.{NAME}.command={json.dumps(MCP_PROGRAM)}",
        "-c",
        f"mcp_servers.{NAME}.env={{{given}}}",
    )


def told_by_variables(kind: str) -> dict[str, str]:
    """Return the variables that add nsm to an agent; they go before its own configuration."""
    if kind != "opencode":
        return {}
    server = {"type": "local", "command": [MCP_PROGRAM]}
    told = {
        "mcp": {NAME: server},
        "permission": "allow",
        "autoupdate": False,
        "instructions": [RULES_FILE],
    }
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(told)}


def keep_entry(kind: str, directory: str) -> str:
    """Keep nsm's entry in the file of an agent that has one; nothing for others.

    Args:
        directory: the agent's, on the host; made where there is none.

    Returns:
        Empty, or for people why there is no such entry. The box works without.
    """
    config_format = _FORMATS.get(kind)
    if config_format is None:
        return ""
    path = os.path.join(directory, config_format.file)
    untold = f"{config_format.agent} is not told of nsm there"
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"{directory}: {error.strerror}, so {untold}"
    try:
        problem = _ensure(place, config_format)
    except OSError as error:
        problem = str(error.strerror or error)
    except _UnusableError as error:
        return f"{path} {error}, so it was left as it is and {untold}. Correct or remove it."
    finally:
        os.close(place)
    return problem and f"{path}: {problem}, so {untold}"


def _ensure(place: int, config_format: McpConfigFormat) -> str:
    for _ in range(_TRIES):
        before = _identity(place, config_format.file)
        content = _read(place, config_format.file) if before else b""
        settings = with_entry(content, config_format)
        if settings is None:
            return ""
        if isinstance(settings, str):
            return settings
        if _replace(place, config_format.file, settings, before):
            return ""
    return "it changes all the time"


def with_entry(content: bytes, config_format: McpConfigFormat) -> bytes | str | None:
    """The file with nsm's entry in it.

    Returns:
        Its new content; None where nothing is to be changed; a sentence where the name is another
        server's.

    Raises:
        _UnusableError: it is not what the agent writes.
    """
    settings = _parsed(content)
    servers = settings.setdefault("mcpServers", {})
    if not isinstance(servers, dict):
        raise _UnusableError("has no object as its mcpServers")
    servers = cast("dict[str, object]", servers)
    earlier = servers.get(NAME)
    entry: dict[str, object] = {}
    if isinstance(earlier, dict):
        entry = dict(cast("dict[str, object]", earlier))
    command = entry.get("command")
    if command == MCP_PROGRAM:
        return None
    if earlier is not None and os.path.basename(str(command)) != _PROGRAM_NAME:
        return f"its server {NAME!r} is another than nsm's"
    # One that was taken over from the host's configuration names a program that is not in the box.
    servers[NAME] = {**config_format.entry, **entry, "command": MCP_PROGRAM}
    try:
        return json.dumps(settings, indent=2).encode()
    except RecursionError:  # written by Python, where it was read by C
        raise _UnusableError("is nested too deeply") from None


def _parsed(content: bytes) -> dict[str, object]:
    if not content.strip():
        return {}
    try:
        settings = json.loads(content)
    except (ValueError, RecursionError):
        raise _UnusableError("is not JSON") from None
    if not isinstance(settings, dict):
        raise _UnusableError("is not a JSON object")
    return cast("dict[str, object]", settings)


def _identity(place: int, name: str) -> tuple[int, ...] | None:
    """Tell whether it was changed or replaced; None where it is not there."""
    try:
        status = os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise _UnusableError("is not a regular file")
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode & 0o777


def _read(place: int, name: str) -> bytes:
    # A link would have another file of the user's read and replaced; a pipe would never end.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=place), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _UnusableError("is not a regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise _UnusableError(f"has more than {MAX_FILE_BYTES // 1024**2} MiB")
    return content


def _replace(place: int, name: str, content: bytes, before: tuple[int, ...] | None) -> bool:
    """Put a new file in its place, whole or not at all.

    Returns:
        False where somebody else has put one there meanwhile.
    """
    mode = before[-1] if before else 0o600
    temporary = f"{name}.nsm-{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, mode, dir_fd=place), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if _identity(place, name) != before:
            return False
        os.replace(temporary, name, src_dir_fd=place, dst_dir_fd=place)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=place)
