"""Errors of runs of Nix. Clients get all of them as `NixFailedError`."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence

from nsm.wire.errors import NixFailedError

SHOWN_LINES = 12
"""Number of lines of the log that a message has; `data` has more, for programs."""

_HINTS: Mapping[str, str] = {
    "No space left on device": "Free some: `nix-collect-garbage` removes what nothing refers to.",
    "database or disk is full": "Free some: `nix-collect-garbage` removes what nothing refers to.",
    "cannot connect to socket": "Nix's daemon does not answer: `systemctl status nix-daemon`.",
    "daemon-socket/socket": "Nix's daemon does not answer: `systemctl status nix-daemon`.",
    "in the flake registries": (
        "A reference is like `github:OWNER/REPO#NAME` or `path:/DIRECTORY#NAME`."
    ),
    "does not provide attribute": "`nix flake show REF` lists what a flake has.",
    "Could not resolve host": "Nix could not reach the network.",
    "unable to download": "Nix could not reach the network, or the place does not exist.",
    "is read-only": "Nix's store or its state directory cannot be written: see `nsm doctor`.",
    "Read-only file system": "Nix's store cannot be written: see `nsm doctor`.",
}
"""Hints by phrases in Nix's messages, since Nix has no error codes."""


_FULL_LOGS = "For full logs, run"
"""Start of advice by Nix that is left out, since `nsm env log` shows the full log."""

# The wording differs between versions of Nix. These phrases are from 2.8 to 2.31.
_START = "error:"
_CONSEQUENCE = re.compile(
    r"\d+ dependenc(?:y|ies)\b.*\bfailed|due to failed dependenc|^error: build of .* failed",
    re.DOTALL,
)
"""Errors that follow from another error, which Nix has printed before."""

_BUILDER = re.compile(
    r"(?:builder for|[Cc]annot build) '(?:[^']*/)?[0-9a-z]{32}-([^']+?)\.drv'"
    r"(?:.*?\b(?:failed|exit code)\b)",
    re.DOTALL,
)
_IN_LOGS = re.compile(r"(?i)\b(?:\w*error|\w*exception|fatal)\b.*?:")


class NixRunError(NixFailedError):
    """Failed run of nix.

    Args:
        what: a sentence that says what happened.
        hint: advice; if empty, it is chosen by Nix's messages.

    Attributes:
        error: error messages of Nix.
        tail: last lines of the log.
        cause: the line of the messages or the log that tells a person what is wrong; may be empty.
    """

    def __init__(self, what: str, *, error: str, tail: Sequence[str], hint: str = "") -> None:
        self.error = error
        self.tail = tuple(tail)
        self.cause = cause(error, tail)
        told = [line for line in error.splitlines() if not line.strip().startswith(_FULL_LOGS)]
        if told == [self.cause]:
            told = []
        before = [line for line in tail if line not in error.splitlines()][-SHOWN_LINES:]
        words = [f"{what.rstrip('.')}: {self.cause}" if self.cause else what, *told[-SHOWN_LINES:]]
        if before:
            words += ["The log ends:", *(f"  {line}" for line in before)]
        if not hint:
            seen = "\n".join([error, *tail])
            hint = next((advice for mark, advice in _HINTS.items() if mark in seen), "")
        super().__init__("\n".join(words), hint=hint, data={"error": error, "log": list(self.tail)})


class NixExitError(NixRunError):
    """nix ended with an exit code other than 0."""

    def __init__(self, command: str, exit_code: int, *, error: str, tail: Sequence[str]) -> None:
        self.exit_code = exit_code
        what = f"`{command}` failed (exit code {exit_code})."
        super().__init__(what, error=error, tail=tail)


class NixKilledError(NixRunError):
    """nix was killed, but not by nsm: by a person, or by the kernel for lack of memory."""

    def __init__(self, command: str, number: int, *, error: str, tail: Sequence[str]) -> None:
        self.signal = number
        super().__init__(
            f"`{command}` was ended by {_signal_name(number)}, which nsm did not send.",
            error=error,
            tail=tail,
            hint="Try again; if the kernel ended it because memory ran out, `dmesg` says so.",
        )


class NixTimeoutError(NixRunError):
    """nix was stopped at its time limit."""

    def __init__(self, command: str, timeout_s: float, *, error: str, tail: Sequence[str]) -> None:
        self.timeout_s = timeout_s
        super().__init__(
            f"`{command}` was stopped after {timeout_s:g} s.",
            error="",
            tail=[line for line in tail if line not in error.splitlines()],
            hint="Finished parts are kept, so another try continues from there.",
        )


class NixOutputError(NixRunError):
    """nix printed more than the size limit."""

    def __init__(self, command: str, limit: int, *, error: str, tail: Sequence[str]) -> None:
        super().__init__(
            f"`{command}` printed more than {limit} bytes on its standard output.",
            error=error,
            tail=tail,
        )


class NixNotStartedError(NixRunError):
    """nix did not start: it could not be executed, or its monitor failed."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"`{command}` did not run: {reason}.", error="", tail=())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def cause(error: str, tail: Sequence[str]) -> str:
    """Find the last error that does not follow from another one; a builder's error if one failed.

    Args:
        error: error messages of Nix.
        tail: last lines of the log; lines of builders begin with ``NAME> ``.

    Returns:
        One line; empty if Nix names no error.
    """
    blocks = list(_blocks(error))
    real = [block for block in blocks if not _CONSEQUENCE.search("\n".join(block))] or blocks
    if not real:
        return ""
    block = real[-1]
    if builder := _BUILDER.search("\n".join(block)):
        return _of_builder(builder[1], block, tail) or block[0]
    first, *rest = block
    if first.endswith(":"):  # a hash mismatch: the next lines have both hashes
        return " ".join([first, ", ".join(" ".join(line.split()) for line in rest[:2])]).rstrip()
    if rest and rest[0].startswith("Did you mean"):
        return f"{first}. {rest[0]}"
    return first


def _blocks(error: str) -> Iterator[list[str]]:
    """Yield the lines of each error. Newer versions print an empty error first, above the trace."""
    block: list[str] = []
    for line in (line.strip() for line in error.splitlines()):
        if line.startswith(_START):
            if block:
                yield block
            block = [line] if line != _START else []
        elif block and line:
            block.append(line)
    if block:
        yield block


def _of_builder(name: str, block: Sequence[str], tail: Sequence[str]) -> str:
    """Return a builder's last line about an error, else its last line; empty if there is none."""
    said = [line.removeprefix("> ") for line in block if line.startswith("> ")]
    said += [line.removeprefix(f"{name}> ") for line in tail if line.startswith(f"{name}> ")]
    if not said:
        return ""
    line = next((line for line in reversed(said) if _IN_LOGS.search(line)), said[-1]).strip()
    return f"error: building {name} failed: {line.removeprefix(_START).strip()}"
