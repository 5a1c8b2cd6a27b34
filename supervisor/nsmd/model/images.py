"""Container images: references to them, and their files as a root directory. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from nsm.dataclass import dataclass

MAX_REFERENCE_CHARS = 1000

IMAGE_PLACE = "/.nsm-image"
"""Place of the files of an image in a template whose sessions may change them."""

Transport = Literal["docker", "oci", "oci-archive", "docker-archive"]

_REPOSITORY = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]+)?(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
"""Name of an image in a registry."""

_EXAMPLES = (
    "`docker://python:3.13-slim`, `oci:/DIRECTORY:TAG`, `oci-archive:/FILE:TAG` or "
    "`docker-archive:/FILE`"
)

_LOCAL: Mapping[str, Transport] = {
    "oci": "oci",
    "oci-archive": "oci-archive",
    "docker-archive": "docker-archive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReference:
    """Place of an image, as skopeo names it (containers-transports(5)).

    Attributes:
        transport: a registry, an OCI layout, an archive of one, or an archive of `docker save`.
        place: name in a registry, or the absolute path.
        tag: tag in the layout or the archive; empty for the only image there.
        digest: of an image in a registry, if the reference has one; else empty.
    """

    transport: Transport
    place: str
    tag: str = ""
    digest: str = ""

    def pinned(self, digest: str) -> str:
        """The name in a registry of the image with this digest."""
        return f"docker://{self.place}@{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRoot:
    """Files of a container image, in place of the host's, as the root directory of a jail.

    Attributes:
        directory: host directory with these files.
        python: command that starts the host's Python in such a jail, for the agent: its own loader
            with its options, and the program.
        writable: code may change these files, in an overlay of its session. Jails then show them
            at `IMAGE_PLACE`, until a fork makes them its root.
    """

    directory: str
    python: tuple[str, ...]
    writable: bool = False


def parse_image(text: str) -> ImageReference:
    """Parse a reference.

    Raises:
        ValueError: it is none; the message is a clause that says why.
    """
    if len(text) > MAX_REFERENCE_CHARS or not text.isprintable():
        raise ValueError(f"has control characters or more than {MAX_REFERENCE_CHARS} characters")
    if text.startswith("docker://"):
        found = _REPOSITORY.fullmatch(text.removeprefix("docker://"))
        if found is None:
            raise ValueError(
                "names no image of a registry; one is like `docker://python:3.13-slim`"
            )
        return ImageReference(
            transport="docker",
            place=found["name"],
            tag=found["tag"] or "",
            digest=found["digest"] or "",
        )
    name, colon, rest = text.partition(":")
    place, _, tag = rest.partition(":")
    if not colon or (transport := _LOCAL.get(name)) is None:
        raise ValueError(f"is no image; expected {_EXAMPLES}")
    if not place.startswith("/"):
        raise ValueError("has a path that is not absolute")
    return ImageReference(transport=transport, place=place, tag=tag)
