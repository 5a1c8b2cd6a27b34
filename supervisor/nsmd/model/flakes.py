"""References to flakes: those that nsm asks Nix to build, and names for the results. Pure.

A reference is `REF#ATTRIBUTE`, where REF is a URL (`github:me/envs`, `git+https://...`,
`path:/home/me/envs`), an absolute path, or a name in Nix's registry. Nix judges the rest; this
module only refuses texts that could be taken for something else: an option, several words, a
relative path.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

from nsm.wire.errors import BadRequestError
from nsmd.model.names import ENVIRONMENT_NAME

MAX_REFERENCE_CHARS = 2000

_RELATIVE = re.compile(
    r"(?:path:|git\+file:(?://)?)?(?:\.{1,2}(?:[/#?]|$)|~)|(?:path|git\+file):(?!/)"
)
_NAME_ALONE = re.compile(r"[A-Za-z0-9][\w.-]*")
_EXAMPLES = "`github:OWNER/REPO#NAME` or `path:/DIRECTORY#NAME`"
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")
_FALLBACK_NAME = "environment"


def check_reference(text: str) -> str:
    """Check a reference, and return it. Raises `BadRequestError`."""
    if _NAME_ALONE.fullmatch(text):
        raise BadRequestError(
            f"{text} is a name: what is the environment to be made from?",
            hint=f"`nsm env add {text} --pip PACKAGES`, or --npm, --requirements, --pyproject, "
            f"--package-lock or --image. A reference to a flake is like {_EXAMPLES}.",
        )
    if why := why_no_reference(text):
        raise BadRequestError(
            f"{text!r:.200} is no reference to a flake: {why}.",
            hint=f"A reference is like {_EXAMPLES}.",
        )
    return text


def why_no_reference(text: str) -> str | None:
    """Why a reference is invalid; None if it is valid."""
    if not text.partition("#")[0]:
        return "it names no flake"
    if len(text) > MAX_REFERENCE_CHARS:
        return f"it has more than {MAX_REFERENCE_CHARS} characters"
    if text.startswith("-"):
        return "it begins with '-', as options do"
    if not text.isprintable() or " " in text:
        return "it has spaces or control characters (in a path, write them as %20 and so on)"
    if _RELATIVE.match(text):
        return "its path is not absolute, and a supervisor serves many directories"
    local = _local(text)
    if local and local[1].keys() - {"dir"}:
        return (
            "only `dir` may come after the `?` of a directory of this machine, whose files nsm "
            f"copies as they are now: leave out {', '.join(sorted(local[1].keys() - {'dir'}))}"
        )
    return None


def split_valid(references: Sequence[str], most: int) -> tuple[list[str], list[str]]:
    """Split references into valid ones to build, and others to report."""
    good = [reference for reference in references if why_no_reference(reference) is None]
    bad = [reference for reference in references if why_no_reference(reference) is not None]
    return good[:most], [*good[most:], *bad][:most]


def local_directory(reference: str) -> str | None:
    """The directory that a reference means with the files that are there now.

    None for other references: of other machines, or of a directory as it is (`path:`), of which
    Nix asks no git.
    """
    local = _local(reference)
    return local and os.path.normpath(os.path.join(local[0], local[1].get("dir", "")))


def _local(reference: str) -> tuple[str, dict[str, str]] | None:
    """The directory and the parameters of a reference for which Nix would ask git here."""
    place, _, query = reference.partition("#")[0].partition("?")
    if not place.startswith("/"):
        url = urlsplit(place)
        if url.scheme != "git+file" or url.netloc:
            return None
        place = unquote(url.path)
    return place, dict(parse_qsl(query, keep_blank_values=True))


def likely_name(reference: str) -> str:
    """Guess the name of a reference's environment, before the build says it."""
    flake, _, attribute = reference.partition("#")
    attribute = attribute.partition("^")[0].strip('"')
    last = attribute.rpartition(".")[2]
    if last in ("", "default"):
        last = re.split(r"[/:]", flake.partition("?")[0].rstrip("/"))[-1]
    name = _NOT_IN_NAMES.sub("-", last.lower()).strip("-")[:64]
    return name if ENVIRONMENT_NAME.fullmatch(name) else _FALLBACK_NAME


def shown(reference: str) -> str:
    """Format a reference for people and models, without a password in its URL."""
    return re.sub(r"//[^/@#?]*@", "//...@", reference)
