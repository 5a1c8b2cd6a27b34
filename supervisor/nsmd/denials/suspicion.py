"""Choice of the outcomes that need an explanation. The others need only this."""

from __future__ import annotations

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
    texts = (outcome.stdout, *(each.get("text/plain") for each in outcome.displays))
    for text in texts:  # noqa: SIM110  # as below
        if text and is_suspicious(text):
            return True
    return False


def is_suspicious(text: object) -> bool:
    """Return whether a text has words of a failure that may be a denial."""
    if not isinstance(text, str):
        return False
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        text = bounded(text)
    for words in SUSPICIOUS:  # noqa: SIM110  # `any` would take three times as long
        if words in text:
            return True
    return False


def bounded(text: str) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text
    return text[:HEAD_CHARS] + "\n" + text[-TAIL_CHARS:]
