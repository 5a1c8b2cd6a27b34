"""A transcript as a Jupyter notebook, of nbformat 4.5.

The format: https://nbformat.readthedocs.io/en/latest/format_description.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsm.transcripts.document import RecordedExecution

if TYPE_CHECKING:
    from typing import Any

    from nsm.transcripts.document import SessionTranscript
    from nsm.wire.transcripts import DisplayedValue, ExecutionEnd, JobStart, OutputPiece

_KERNELS = {
    "python": ("python3", "Python 3", "python", ".py", "text/x-python"),
    "bash": ("bash", "Bash", "bash", ".sh", "text/x-sh"),
    "node": ("javascript", "JavaScript (Node.js)", "javascript", ".js", "application/javascript"),
}
"""Usual name and title of the kernel of each interpreter, and its language."""

_PYTHON_ERROR = re.compile(r"(?P<name>[A-Za-z_][\w.]{0,200})(?:: (?P<value>.*))?\Z", re.DOTALL)
_NODE_ERROR = re.compile(r"^Uncaught (?P<name>[\w.]{1,200})(?:: (?P<value>[^\n]*))?$", re.MULTILINE)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):$", re.MULTILINE)


def notebook(transcript: SessionTranscript) -> dict[str, Any]:
    """Make the notebook: a code cell for each execution, and a raw one for each job."""
    session = transcript.session
    name, title, language, extension, mimetype = _KERNELS.get(
        session.interpreter, _KERNELS["python"]
    )
    note = {
        "id": session.id,
        "name": session.name,
        "env": session.env,
        "client": session.client,
        "started_at": session.started_at,
        "dropped": session.dropped,
    }
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": name, "display_name": title, "language": language},
            "language_info": {
                "name": language,
                "file_extension": extension,
                "mimetype": mimetype,
            },
            "nsm": note,
        },
        "cells": [
            _code_cell(item, session.interpreter)
            if isinstance(item, RecordedExecution)
            else _job_cell(item, place)
            for place, item in enumerate(transcript.items)
        ],
    }


def _code_cell(execution: RecordedExecution, interpreter: str) -> dict[str, Any]:
    start, end = execution.start, execution.end
    code = start.code
    if start.code_omitted:
        comment = "//" if interpreter == "node" else "#"
        code += f"\n{comment} [{start.code_omitted:,} characters of code left out]"
    note: dict[str, Any] = {"client": start.client, "started_at": start.started_at}
    note |= {key: True for key in ("stdin", "reset") if getattr(start, key)}
    if start.argv:
        note["argv"] = list(start.argv)
    if end is not None:
        note |= {"exit_code": end.exit_code, "duration_s": end.duration_s}
    return {
        "cell_type": "code",
        "id": f"execution-{start.number}",
        "metadata": {"nsm": note},
        "execution_count": start.number,
        "source": code,
        "outputs": _outputs(execution, interpreter),
    }


def _job_cell(job: JobStart, place: int) -> dict[str, Any]:
    text = f"[{job.client} started job {job.job} here; its output is not in the transcript]"
    return {
        "cell_type": "raw",
        "id": f"job-{place}",
        "metadata": {"nsm": {"client": job.client, "started_at": job.started_at}},
        "source": f"{text}\n{job.command}",
    }


def _outputs(execution: RecordedExecution, interpreter: str) -> list[dict[str, Any]]:
    outputs = _streams(execution.pieces)
    end = execution.end
    if end is None:
        return outputs
    outputs += _displays(end.displays, execution.start.number)
    error = _ending(end)
    if error is None and end.exit_code and outputs:
        error = _raised(outputs, interpreter)
    return outputs if error is None else [*outputs, error]


def _streams(pieces: tuple[OutputPiece, ...]) -> list[dict[str, Any]]:
    """Printed output: adjacent pieces of one stream together."""
    texts: list[tuple[str, list[str]]] = []
    for piece in pieces:
        if not texts or texts[-1][0] != piece.stream:
            texts.append((piece.stream, []))
        if piece.skipped:
            texts[-1][1].append(f"\n[{piece.skipped:,} characters left out]\n")
        texts[-1][1].append(piece.text)
    return [
        {"output_type": "stream", "name": stream, "text": "".join(each)} for stream, each in texts
    ]


def _displays(displays: tuple[DisplayedValue, ...], number: int) -> list[dict[str, Any]]:
    """Displayed values. The last one is the result, if it has text and no image."""
    outputs: list[dict[str, Any]] = []
    for place, shown in enumerate(displays, 1):
        data: dict[str, str] = dict(shown.data)
        if not data:
            left_out = [f"{kind}, {chars:,} characters" for kind, chars in shown.omitted.items()]
            data["text/plain"] = f"[left out: {'; '.join(left_out)}]"
        has_image = any(kind.startswith("image/") for kind in (*data, *shown.omitted))
        if place == len(displays) and "text/plain" in data and not has_image:
            kind = {"output_type": "execute_result", "execution_count": number}
        else:
            kind = {"output_type": "display_data"}
        outputs.append({**kind, "data": data, "metadata": {}})
    return outputs


def _ending(end: ExecutionEnd) -> dict[str, Any] | None:
    """The error of code that nsm stopped, or that did not run."""
    if end.error is not None:
        return _error("NotRun", str(end.error), [str(end.error)])
    if end.timed_out:
        return _error("TimedOut", f"after {end.duration_s:.1f} s", [])
    if end.interrupted:
        return _error("Interrupted", f"after {end.duration_s:.1f} s", [])
    return None


def _raised(outputs: list[dict[str, Any]], interpreter: str) -> dict[str, Any] | None:
    """Take the traceback off the end of what was printed to standard error, as an error of its
    own; None if there is none, as in Bash.
    """
    streams = [output for output in outputs if output.get("name") == "stderr"]
    if not streams:
        return None
    text: str = streams[-1]["text"]
    if interpreter == "node":
        found = list(_NODE_ERROR.finditer(text))
        begin = found[-1].start() if found else -1
        raised = found[-1] if found else None
    else:
        # Tracebacks of causes belong to the last one: all from the first on are its.
        first = _TRACEBACK.search(text)
        begin = first.start() if first else -1
        raised = None
        if first:
            indented = text[begin:].rstrip("\n").split("\n")
            last = max(i for i, line in enumerate(indented) if not i or line.startswith(" "))
            raised = _PYTHON_ERROR.match("\n".join(indented[last + 1 :]))
    if raised is None or interpreter == "bash":
        return None
    rest = text[:begin]
    if rest:
        streams[-1]["text"] = rest
    else:
        outputs.remove(streams[-1])
    lines = text[begin:].rstrip("\n").split("\n")
    return _error(raised["name"], raised["value"] or "", lines)


def _error(name: str, value: str, traceback: list[str]) -> dict[str, Any]:
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": traceback}
