"""Choice of the outcomes that need an explanation. The others need only this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsmd.model.values import Outcome

HEAD_CHARS = 4_000
TAIL_CHARS = 20_000
"""Characters of a text to examine; see `nsmd.denials.explaining`."""

SUSPICIOUS = (
    "ead-only file system",
    "etwork is unreachable",
    "ENETUNREACH",
    "ame or service not known",
    "ailure in name resolution",
    "resolve host",
    "from versions: none",
    "ENOTFOUND",
    "o space left on device",
    "llocate memory",
    "oo many open files",
    "emporarily unavailable",
    "MemoryError",
)
"""Output of a successful and silent program is examined further if it contains one of these."""


def looks_suspicious(outcome: Outcome) -> bool:
    """Return whether a closer look is worthwhile: False if all went well, without error output."""
    if outcome.exit_code or outcome.stderr or outcome.interpreter_restarted:
        return True
    if outcome.displays and any(map(suspicious_text, outcome.displays)):
        return True
    return _is_suspicious(bounded(outcome.stdout))


def _is_suspicious(text: str) -> bool:
    for words in SUSPICIOUS:  # noqa: SIM110  # `any` would take three times as long
        if words in text:
            return True
    return False


def suspicious_text(display: Mapping[str, Any]) -> str:
    """Return the text of a displayed value if it looks suspicious, else an empty text."""
    text = display.get("text/plain")
    if not isinstance(text, str):
        return ""
    text = bounded(text)
    return text if _is_suspicious(text) else ""


def bounded(text: str) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text
    return text[:HEAD_CHARS] + "\n" + text[-TAIL_CHARS:]
