"""Text and images for a model, of a result or an error. Pure functions.

The order is that of the specification: output first, then notes in brackets, so that success and
failure can be told apart from the text alone.

One display holds one value in several representations. The first one that can be shown is used: a
PNG, a JPEG, then the texts, the plainest first. Images from a jail are checked, and bounded as
models' APIs bound them: these refuse every conversation that contains a broken or too large image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nsm.dataclass import dataclass
from nsm.jsonlines import MAX_LINE_BYTES
from nsm.wire.code import PLACE, Truncation, split_place
from nsm.wire.errors import NsmError, StartFailedError, UnknownEnvironmentError, UnknownJobError
from nsm.wire.images import EXTENSIONS, BadImageError, Image, decode, dimensions_of, encoded_chars
from nsmd.agent_link.frames import JobFacts
from nsmd.mcp.run_tool import JobId
from nsmd.mcp.text import clean, head_and_tail, line_end, one_line, settled, shares, size
from nsmd.model.values import Outcome, RunOutcome
from sandbox.limits import FILE_BYTES

MAX_IMAGE_CHARS = 5 * 1024 * 1024
"""Largest image as base64: Anthropic's API refuses more ("image exceeds 5 MB maximum")."""

MAX_IMAGE_SIDE = 8000
"""Largest length of an image's longer side in pixels, by the same API."""

MAX_IMAGES = 20
"""Largest number of images in one result. With more than 20 in a request, that API takes only small
ones.
"""

MAX_IMAGES_CHARS = 10 * 1024 * 1024
"""Largest size of all images of a result as base64: one result is one line, which has a
limit, too.
"""

_SVG = "image/svg+xml"

_TEXT_TYPES = ("text/plain", "text/markdown", "application/json", _SVG, "text/html")
"""MIME types that a model can read, the plainest first. An SVG says more than a bare repr."""

_CAPTION_TYPES = ("text/plain", "text/markdown")
"""MIME types of texts that may say more than an image does."""

_MEDIA = ("image/", "audio/", "video/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDisplays:
    """All displays of an execution.

    Attributes:
        text: lines in the displays' order; a line has the number of an image at its place.
    """

    text: str
    images: tuple[Image, ...]
    omitted_images: int


def show_displays(
    bundles: Sequence[Mapping[str, Any]],
    *,
    room_chars: int = MAX_IMAGES_CHARS,
    failed: bool = False,
) -> ShownDisplays:
    """Show the displays of an execution.

    Args:
        failed: the result is an error. Then no image is shown: Anthropic's API refuses such a
            request ("all content must be type `text` if `is_error` is true"), and every later one
            of the conversation.
    """
    album = _Album(min(room_chars, MAX_IMAGES_CHARS), failed=failed)
    lines = [line for bundle in bundles for line in _lines(bundle, album)]
    return ShownDisplays(
        text="".join(line_end(line) for line in lines),
        images=tuple(album.images),
        omitted_images=album.omitted,
    )


class _Album:
    """The images of one result, as far as there is room."""

    def __init__(self, room_chars: int, *, failed: bool) -> None:
        self.images: list[Image] = []
        self.number = 0
        self.omitted = 0
        self._failed = failed
        self._room_chars = room_chars

    def add(self, kind: str, data: Any) -> str:
        """Add an image if it is one and there is room. Returns why it was not added, or nothing."""
        chars = encoded_chars(data)
        why = self._no_room(chars)
        dimensions = None
        if not why:
            try:
                image = decode(kind, data)
            except BadImageError as error:
                return f"{kind}, {_size(data, chars)}, cannot be shown: it {error}"
            dimensions = image.dimensions
            if max(dimensions) <= MAX_IMAGE_SIDE:
                self.images.append(image)
                self._room_chars -= chars
                return ""
            why = f"a side has more than {MAX_IMAGE_SIDE} pixels"
        self.omitted += 1
        dimensions = dimensions or dimensions_of(kind, data)
        pixels = f"{dimensions}, " if dimensions else ""
        return f"{kind}, {pixels}{_size(data, chars)}, is left out: {why}"

    def _no_room(self, chars: int) -> str:
        if self._failed:
            return "a failed call shows none"
        if chars > MAX_IMAGE_CHARS:
            return f"models take {MAX_IMAGE_CHARS:,} characters of base64, it has {chars:,}"
        if len(self.images) >= MAX_IMAGES:
            return f"a result shows at most {MAX_IMAGES} images"
        if chars > self._room_chars:
            return "the images before it have used up the room"
        return ""


def _lines(bundle: Mapping[str, Any], album: _Album) -> list[str]:
    """Lines of one display; a value whose text is in stdout is not repeated."""
    bundle, place = split_place(bundle) if PLACE in bundle else (bundle, None)
    name = f"image {place}: " if place else ""
    album.number = place or album.number
    refused: list[str] = []
    omitted = album.omitted
    for kind in EXTENSIONS:
        if kind in bundle:
            why = album.add(kind, bundle[kind])
            if not why:
                album.omitted = omitted  # it is shown, but in another type
                album.number = place or album.number + 1  # as in the lines of stdout
                return [_image_line(album), *(_caption(bundle) if place is None else [])]
            refused.append(f"[{name}{why}]")
    album.omitted = min(album.omitted, omitted + 1)  # one picture, in however many types
    readable = _readable(bundle)
    if readable is None:
        return refused + [_not_shown(*item) for item in bundle.items() if item[0] not in EXTENSIONS]
    media = [
        _not_shown(kind, data)
        for kind, data in bundle.items()
        if kind.startswith(_MEDIA) and kind not in (*EXTENSIONS, *_TEXT_TYPES)
    ]
    if place is not None and readable != _SVG:
        return [*refused, *media]
    text = [f"[{name}{_SVG}]"] if name else []
    return [*text, _text(bundle[readable]), *refused, *media]


def _readable(bundle: Mapping[str, Any]) -> str | None:
    """MIME type of the text to show, if there is any."""
    plain = bundle.get("text/plain")
    if _SVG in bundle and (not isinstance(plain, str) or _is_repr(plain.strip())):
        return _SVG
    return next((kind for kind in _TEXT_TYPES if kind in bundle), None)


def _image_line(album: _Album) -> str:
    """Line that stands for an image: some clients show none, and models count them."""
    image = album.images[-1]
    return f"[image {album.number}: {image.kind}, {image.dimensions}]"


def _caption(bundle: Mapping[str, Any]) -> list[str]:
    """Return the text beside an image; none if it is only a repr such as ``<Figure ...>``."""
    for kind in _CAPTION_TYPES:
        text = bundle.get(kind)
        if isinstance(text, str) and text.strip() and not _is_repr(text.strip()):
            return [text]
    return []


def _is_repr(text: str) -> bool:
    return text.startswith("<") and text.endswith(">") and "\n" not in text


def _size(data: Any, chars: int) -> str:
    padding = data[-3:].count("=") if isinstance(data, str) else 0
    return size(max(0, chars * 3 // 4 - padding))


def _not_shown(kind: str, data: Any) -> str:
    length = len(data) * 3 // 4 if isinstance(data, str) else 0  # base64
    return f"[{one_line(kind, 80)}, {size(length)}, is not shown]"


def _text(data: object) -> str:
    if isinstance(data, str):
        return data
    try:
        return json.dumps(data, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return "(a value that cannot be shown)"


MAX_RESULT_CHARS = 40_000
"""Default of `[mcp] max_result_chars`: most characters of output in one result."""

LEFT_OUT_CHARS = 100
"""Room for the line between head and tail of a text that was cut before, so that it is not cut
again.
"""

NOTICEABLE_WAIT_S = 1.0
"""A wait for other calls of a session is reported from this time on; nobody notices a
shorter one.
"""

META_KEY = "nsm"
"""Key in a result's `_meta` for programs. Not `structuredContent`: if that is present, several
clients show the model nothing else.
"""

_MAX_ERROR_CHARS = 8000
"""Largest text of an error, which may quote bubblewrap or a build."""

MAX_NOTE_CHARS = 600
"""Largest note about a rule of the jail; such notes are made short."""

NOTHING_OMITTED = Truncation(0, None)

_STDERR_HEADING = "--- stderr ---\n"

_JSON_SPACE = " \t\r\n"
_JSON_BEGINNINGS = '-0123456789"[tfn'
_JSON_ENDS = '0123456789"]el'
"""First and last characters of JSON that is no object. Most texts begin or end otherwise."""

_MAX_ESCAPED_BYTES = 6
"""Largest size of one character in JSON: ``\\u0000``."""

_LINE_RESERVE_BYTES = 256 * 1024
"""Room in a line for everything but stdout, stderr and images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """The answer to a tool call before it becomes the SDK's type."""

    text: str
    is_error: bool
    meta: Mapping[str, Any]
    images: tuple[Image, ...] = ()
    started: tuple[JobId, JobFacts] | None = None


def render_result(
    result: RunOutcome, *, max_chars: int = MAX_RESULT_CHARS, name_chosen: bool = False
) -> ToolReply:
    """Make the reply for an executed call, with any exit code.

    Args:
        max_chars: most characters of output; notes come on top.
    """
    outcome = result.outcome
    shown = _show(outcome, max_chars)
    body, cut = _body(outcome, shown.text, max_chars)
    notes = _session_notes(result, name_chosen)
    if shown.omitted_images:
        notes.append(_image_note(result, shown.omitted_images))
    if said := _outcome_notes(result, cut):
        notes.append("; ".join(said))
    if outcome.timed_out:
        notes += _longer(result)
    notes += [one_line(note, MAX_NOTE_CHARS) for note in (*outcome.notes, *result.denials)]
    if not body and not outcome.exit_code:
        body = "(no output)\n"
    if body and notes and not body.endswith("\n"):
        body += "\n"
    return ToolReply(
        text=body + "\n".join(f"[{note}]" for note in notes),
        is_error=outcome.exit_code != 0,
        meta={META_KEY: _extras(result, sum(cut.values()))},
        images=shown.images,
    )


def unlike_json(text: str) -> str:
    """Return a result's text, with a note after it if it would be JSON that is no object.

    A widely used client reads the first text as structured content if it parses, refuses anything
    but an object, and the model gets nothing.
    """
    first = text.lstrip(_JSON_SPACE)[:1]
    if not first or first not in _JSON_BEGINNINGS or text.rstrip(_JSON_SPACE)[-1] not in _JSON_ENDS:
        return text
    try:
        json.loads(text, parse_int=float, parse_constant=_refuse_constant)
    except ValueError:
        return text
    except RecursionError:
        pass  # other parsers read on
    return f"{line_end(text)}[exit code 0]"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def render_error(error: NsmError) -> ToolReply:
    """Make the reply for a call that could not be carried out."""
    hint = _MODEL_HINTS.get(type(error)) or error.hint or _DEFAULT_HINTS.get(type(error), "")
    text = f"{error.message}\n{hint}" if hint else error.message
    text, _ = head_and_tail(clean(text), _MAX_ERROR_CHARS)
    return ToolReply(text=text, is_error=True, meta={META_KEY: {"error": error.code}})


_MODEL_HINTS: Mapping[type[NsmError], str] = {
    UnknownJobError: "A call with `background` tells the id of its job. "
    "Jobs end with their session, which ends when it was idle for long.",
}
"""Hints in place of those for people at a command line."""

_DEFAULT_HINTS: Mapping[type[NsmError], str] = {
    StartFailedError: "`nsm doctor` says what is missing on this machine.",
    UnknownEnvironmentError: "The tool's description lists the environments.",
}


def _show(outcome: Outcome, max_chars: int) -> ShownDisplays:
    """Select the displays, with as many images as fit into the line of the result."""
    if not outcome.displays:
        return ShownDisplays(text="", images=(), omitted_images=0)
    text_bytes = _MAX_ESCAPED_BYTES * min(len(outcome.stdout) + len(outcome.stderr), max_chars)
    room = MAX_LINE_BYTES - _LINE_RESERVE_BYTES - text_bytes
    return show_displays(outcome.displays, room_chars=room, failed=outcome.exit_code != 0)


def _body(outcome: Outcome, displayed: str, max_chars: int) -> tuple[str, dict[str, int]]:
    """Combine stdout, stderr and displayed values within the limit. Also returns the number of
    characters left out of each here.
    """
    streams = {"stdout": outcome.stdout, "stderr": outcome.stderr}
    parts = {name: settled(clean(text)) for name, text in streams.items() if text}
    if displayed:
        parts["displays"] = clean(displayed)
    cut: dict[str, int] = {}
    sizes = list(map(len, parts.values()))
    if sum(sizes) > max_chars:
        # Each stream has its share: a flood of one must not push the other out.
        for name, granted in zip(parts, shares(sizes, max_chars), strict=True):
            missing = outcome.truncated.get(name, NOTHING_OMITTED).omitted_bytes
            parts[name], cut[name] = head_and_tail(parts[name], granted, missing)
    body = parts.get("stdout", "")
    if stderr := parts.get("stderr"):
        body = line_end(body) + _STDERR_HEADING + stderr
    if shown := parts.get("displays"):
        body = line_end(body) + shown
    return body, cut


def _session_notes(result: RunOutcome, name_chosen: bool) -> list[str]:
    """Describe the session that ran the code."""
    notes: list[str] = []
    name = result.session_name
    if name is not None and result.replaced is not None:
        notes.append(
            f"session '{name}' is new: the earlier one {one_line(result.replaced, 200)}; "
            "variables and /workspace were lost"
        )
    elif name is not None and name_chosen:
        notes.append(f"session: {name}")
    elif name is not None and result.created:
        # Said even if no earlier session is known: a restarted supervisor has forgotten it, but the
        # model has not.
        notes.append(f"session '{name}' is new")
    if result.waited_s >= NOTICEABLE_WAIT_S:
        notes.append(f"waited {_seconds(result.waited_s)} for an earlier call in this session")
    if result.clamped_from_s is not None:
        notes.append(
            f"timeout_seconds lowered from {_seconds(result.clamped_from_s)} to "
            f"{_seconds(result.timeout_s)}, the limit of {result.env}"
        )
    return notes


def _image_note(result: RunOutcome, omitted: int) -> str:
    left_out = "1 image" if omitted == 1 else f"{omitted} images"
    where = "" if result.session_name is not None else ", in a session,"
    target = f"{result.session_name or 'SESSION'}:PATH"
    instead = "in a call that succeeds" if result.outcome.exit_code else "fewer or smaller ones"
    return (
        f"{left_out} left out: show {instead}, or save to files{where} from where a person gets "
        f"them with `nsm cp {target} .`"
    )


def _outcome_notes(result: RunOutcome, cut: Mapping[str, int]) -> list[str]:
    """Describe the outcome, in parts of one line."""
    outcome = result.outcome
    said: list[str] = []
    if outcome.timed_out:
        said.append(f"timed out after {_seconds(result.timeout_s)}")
    if outcome.interrupted:
        said.append("interrupted")
    if outcome.exit_code:
        said.append(f"exit code {outcome.exit_code}")
    # otherwise it ends anyway
    if outcome.interpreter_restarted and result.session_name is not None:
        why = one_line(outcome.restart_reason, 200).rstrip(".")
        said.append(f"interpreter restarted (state lost){': ' if why else ''}{why}")
    truncated = outcome.truncated
    for stream, truncation in sorted(truncated.items()):
        note = f"{stream} truncated"
        if not cut.get(stream):  # else only the line in the text knows how much
            note += f", {size(truncation.omitted_bytes)} left out"
        if result.session_name is None:
            note += f": repeat with a session to keep up to {size(FILE_BYTES)} in a file"
        elif truncation.file is not None:
            note += f": {truncation.where(one_line(truncation.file, 200))}"
        said.append(note)
    omitted_chars = sum(chars for name, chars in cut.items() if name not in truncated)
    if omitted_chars:
        said.append(
            f"output truncated, {omitted_chars:,} characters left out: print less, or write it to "
            "a file in a session and read parts of it"
        )
    return said


def _longer(result: RunOutcome) -> list[str]:
    """Advice for code that was stopped at its time limit: how to run for longer."""
    longest_s = result.longest_s
    if longest_s is None:
        return []
    if result.timeout_s < longest_s:
        return [f"timeout_seconds may be up to {_seconds(longest_s).removesuffix(' s')}"]
    if not result.keeps_state:
        return []
    where = "this session" if result.session_name is not None else "a session"
    return [f"longer work: `background` in {where}, then ask with `job`"]


def _extras(result: RunOutcome, omitted_chars: int) -> dict[str, Any]:
    outcome = result.outcome
    return {
        "exit_code": outcome.exit_code,
        "duration_s": round(outcome.duration_s, 6),
        "execution_id": result.execution_id,
        "env": result.env,
        "session": result.session_name,
        "session_id": result.session_id,
        "session_created": result.created,
        "timed_out": outcome.timed_out,
        "interrupted": outcome.interrupted,
        "interpreter_restarted": outcome.interpreter_restarted,
        "waited_s": round(result.waited_s, 3),
        "timeout_s": result.timeout_s,
        "omitted_bytes": {name: t.omitted_bytes for name, t in outcome.truncated.items()},
        "omitted_chars": omitted_chars,
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}".removesuffix(".0") + " s" if seconds < 1e15 else f"{seconds:g} s"
