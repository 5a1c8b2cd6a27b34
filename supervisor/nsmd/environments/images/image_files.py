"""An image in an OCI layout, in an archive of one, or in an archive that `docker save` wrote.

All that is read here is hostile. Whatever has a digest is compared with it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

from nsmd.environments.images.layers import PIECE_BYTES, Layer, split_digest
from nsmd.environments.images.tree import ImageError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO, BinaryIO

MAX_JSON_BYTES = 4 * 1024 * 1024
"""Largest index, manifest or configuration; registries take manifests of 4 MiB."""

MAX_LAYERS = 500
"""Most layers of one image; Docker makes 127 at most."""

MAX_INDEXES = 4
"""Indexes that lead to one manifest."""

REF_NAME = "org.opencontainers.image.ref.name"
"""Annotation with the tag of an image in a layout."""

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
"""Names of Go for what uname(2) says."""


def architecture() -> str:
    """Name of this machine's processor, as images have it."""
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, machine)


class ImageFiles:
    """An image whose layers can be read.

    Attributes:
        digest: hash of its manifest; of an archive without one, that of its configuration.
        config: its configuration.
    """

    digest: str
    config: Mapping[str, Any]

    def close(self) -> None:
        """Close what is open of it."""
        raise NotImplementedError

    def layers(self, max_bytes: int) -> list[Layer]:
        """The layers, the lowest first.

        Raises:
            ImageError: they are not those of the configuration.
        """
        raise NotImplementedError

    def _diff_ids(self, count: int) -> list[str]:
        found = _texts(_map(self.config, "rootfs"), "diff_ids")
        if len(found) != count:
            raise ImageError(f"it has {count} layers, and its configuration names {len(found)}")
        if count > MAX_LAYERS:
            raise ImageError(f"it has {count} layers, and nsm takes at most {MAX_LAYERS}")
        return found

    def _check_platform(self) -> None:
        """
        Raises:
            ImageError: it is for another kind of machine.
        """
        system, processor = self.config.get("os"), self.config.get("architecture")
        if (system, processor) != ("linux", architecture()):
            raise ImageError(
                f"it is for {shown(f'{system}/{processor}')}, and this machine is "
                f"linux/{architecture()}"
            )


class LayoutImage(ImageFiles):
    """An image in an OCI layout.

    Args:
        directory: path of the layout.
        tag: which image of it; empty for the only one.

    Raises:
        ImageError: there is no such image, or it cannot be used here.
    """

    def __init__(self, directory: str, tag: str) -> None:
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._read(tag)
        except BaseException:
            self.close()
            raise

    def _read(self, tag: str) -> None:
        descriptor = self._named(parse(_read(self._open("index.json"), MAX_JSON_BYTES)), tag)
        for _ in range(MAX_INDEXES):
            if descriptor.get("mediaType") not in _INDEXES:
                break
            descriptor = _for_this_machine(parse(self._blob(descriptor)))
        self.digest = _text(descriptor, "digest")
        manifest = parse(self._blob(descriptor))
        if as_object(manifest.get("config")) is None:
            raise ImageError("its manifest names no configuration")
        self.config = parse(self._blob(_map(manifest, "config")))
        self._check_platform()
        self._layers = _maps(manifest, "layers")

    def close(self) -> None:
        os.close(self._root)

    def layers(self, max_bytes: int) -> list[Layer]:
        found: list[Layer] = []
        # Without `strict`, which Python 3.9 has not: the lengths were compared.
        diff_ids = self._diff_ids(len(self._layers))
        for descriptor, diff_id in zip(self._layers, diff_ids):  # noqa: B905
            digest, size = _text(descriptor, "digest"), _size(descriptor)
            if descriptor.get("urls"):
                raise ImageError("one of its layers is kept outside the image (`urls`)")
            opened = partial(self._open, _blob_path(digest))
            found.append(
                Layer(opened, digest=digest, size=size, diff_id=diff_id, max_bytes=max_bytes)
            )
        return found

    def _named(self, index: Mapping[str, Any], tag: str) -> Mapping[str, Any]:
        all_of_them = _maps(index, "manifests")
        tags: dict[str, Mapping[str, Any]] = {}
        for each in all_of_them:
            tags.setdefault(_tag(each), each)
        if not tag and len(all_of_them) == 1:
            return all_of_them[0]
        if not tag or tag not in tags:
            known = ", ".join(shown(each) for each in list(tags)[:10] if each) or "none"
            raise ImageError(f"the layout has no image {shown(tag)}; its tags: {known}")
        return tags[tag]

    def _blob(self, descriptor: Mapping[str, Any]) -> bytes:
        """A small blob, compared with its digest and size."""
        digest = _text(descriptor, "digest")
        data = _read(self._open(_blob_path(digest)), MAX_JSON_BYTES)
        algorithm, digits = split_digest(digest)
        if hashlib.new(algorithm, data).hexdigest() != digits or len(data) != _size(descriptor):
            raise ImageError(f"{digest[:26]} is not what its digest says")
        return data

    def _open(self, path: str) -> BinaryIO:
        """Open a regular file of the layout, through no links."""
        folder = self._root
        opened: list[int] = []
        try:
            *folders, name = path.split("/")
            for each in folders:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                folder = os.open(each, flags, dir_fd=folder)
                opened.append(folder)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            raise ImageError(f"{shown(path)} of the layout: {error.strerror}") from error
        finally:
            for number in opened:
                os.close(number)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ImageError(f"{shown(path)} of the layout is no file")
        return os.fdopen(fd, "rb")


class Archive:
    """An archive whose files are read in any order.

    Args:
        path: path of the archive.
        max_bytes: its largest size, uncompressed.

    Raises:
        ImageError: it is none.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        with ExitStack() as opened:
            try:
                file = opened.enter_context(_uncompressed(path, max_bytes))
                self._archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  # it owns none
                # The whole archive is looked through, as names may come in any order.
                self._names = {name.removeprefix("./"): name for name in self._archive.getnames()}
            except (tarfile.TarError, OSError, EOFError, ValueError) as error:
                said = str(error)[:200]
                raise ImageError(f"it is no archive of an image: {said}") from error
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def has(self, name: str) -> bool:
        """Return whether it has a file of that name."""
        return name in self._names

    def open(self, name: str) -> BinaryIO:
        """Open a file.

        Raises:
            ImageError: there is none.
        """
        try:
            # Through links within the archive.
            file = self._archive.extractfile(self._names.get(name, name))
        except (KeyError, tarfile.TarError, RecursionError) as error:
            raise ImageError(f"the archive has no {shown(name)}") from error
        if file is None:
            raise ImageError(f"{shown(name)} of the archive is no file")
        return file  # type: ignore[return-value]


class ArchivedLayout(LayoutImage):
    """An image in an archive of an OCI layout.

    Args:
        archive: it is closed with this, and if this cannot be made.
        tag: as of `LayoutImage`.

    Raises:
        ImageError: there is no such image, or it cannot be used here.
    """

    def __init__(self, archive: Archive, tag: str) -> None:
        self._archive = archive
        try:
            self._read(tag)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._archive.close()

    def _open(self, path: str) -> BinaryIO:
        return self._archive.open(path)


class ArchivedImage(ImageFiles):
    """An image in an archive of `docker save`.

    Args:
        archive: it is closed with this, and if this cannot be made.
        tag: which image of it, as in `docker images`; empty for the only one.

    Raises:
        ImageError: there is no such image, or it cannot be used here.
    """

    def __init__(self, archive: Archive, tag: str) -> None:
        self._archive = archive
        try:
            self._read(tag)
        except BaseException:
            self.close()
            raise

    def _read(self, tag: str) -> None:
        if not self._archive.has("manifest.json"):
            raise ImageError("the archive has no manifest.json, as `docker save` writes")
        images = as_list(_parse_any(self._content("manifest.json")))
        if images is None:
            raise ImageError("its manifest.json is not what `docker save` writes")
        found = (as_object(each) for each in images)
        manifest = _chosen([each for each in found if each is not None], tag)
        config = self._content(_text(manifest, "Config"))
        self.digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
        self.config = parse(config)
        self._check_platform()
        self._layers = _texts(manifest, "Layers")

    def close(self) -> None:
        self._archive.close()

    def layers(self, max_bytes: int) -> list[Layer]:
        return [
            Layer(
                partial(self._archive.open, name),
                digest="",
                size=-1,
                diff_id=diff_id,
                max_bytes=max_bytes,
            )
            for name, diff_id in zip(  # noqa: B905  # as in a layout
                self._layers, self._diff_ids(len(self._layers))
            )
        ]

    def _content(self, name: str) -> bytes:
        return _read(self._archive.open(name), MAX_JSON_BYTES)


def open_image(path: str, tag: str, max_bytes: int, *, is_layout: bool) -> ImageFiles:
    """Open an image.

    Args:
        path: of a layout or of an archive.
        tag: which image of it; empty for the only one.
        max_bytes: largest size of an archive, uncompressed.
        is_layout: an archive is read as that of a layout. `docker save` writes files of both kinds.

    Raises:
        ImageError: there is no such image, or it cannot be used here.
    """
    if os.path.isdir(path):
        return LayoutImage(path, tag)
    archive = Archive(path, max_bytes)
    return ArchivedLayout(archive, tag) if is_layout else ArchivedImage(archive, tag)


def _uncompressed(path: str, max_bytes: int) -> BinaryIO:
    """Open an archive; a compressed one is unpacked into a file without a name.

    Its layers are read in any order, and each way back would unpack it from its beginning.
    """
    with tarfile.open(path, "r:*") as archive:
        packed = cast("IO[bytes]", archive.fileobj)
        if isinstance(packed, io.BufferedReader):  # it is not compressed
            return open(path, "rb")
        packed.seek(0)
        with ExitStack() as on_error:
            copy = on_error.enter_context(tempfile.TemporaryFile())
            size = 0
            while piece := _piece(packed):
                size += len(piece)
                if size > max_bytes:
                    raise ImageError(f"its archive is larger than {max_bytes >> 20} MiB")
                copy.write(piece)
            copy.seek(0)
            on_error.pop_all()
            return copy


def _piece(packed: IO[bytes]) -> bytes:
    try:
        return packed.read(PIECE_BYTES)
    except Exception as error:  # each kind of compression has its own
        raise tarfile.ReadError(str(error)) from error


def _chosen(images: Sequence[Mapping[str, Any]], tag: str) -> Mapping[str, Any]:
    tags = [[str(each) for each in as_list(image.get("RepoTags")) or []] for image in images]
    if not tag and len(images) == 1:
        return images[0]
    for image, its in zip(images, tags):  # noqa: B905  # as above
        if tag and tag in its:
            return image
    known = ", ".join(shown(each) for its in tags[:10] for each in its[:1]) or "none"
    raise ImageError(f"the archive has no image {shown(tag)}; its images: {known}")


def _for_this_machine(index: Mapping[str, Any]) -> Mapping[str, Any]:
    """Descriptor of the image for this machine."""
    known: list[str] = []
    for descriptor in _maps(index, "manifests"):
        platform = as_object(descriptor.get("platform") or {})
        if platform is None:
            raise ImageError("its index has a platform that is no object of JSON")
        if (platform.get("os"), platform.get("architecture")) == ("linux", architecture()):
            return descriptor
        known.append(f"{platform.get('os')}/{platform.get('architecture')}")
    there = ", ".join(shown(each) for each in known[:10]) or "none"
    raise ImageError(f"it has nothing for linux/{architecture()}; it has: {there}")


def _read(file: BinaryIO, limit: int) -> bytes:
    with file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ImageError(f"its manifest or configuration is larger than {limit >> 20} MiB")
    return data


def parse(data: bytes) -> Mapping[str, Any]:
    """Parse an object of JSON.

    Raises:
        ImageError: it is none.
    """
    found = as_object(_parse_any(data))
    if found is None:
        raise ImageError("its manifest or configuration is no object of JSON")
    return found


def as_object(value: object) -> dict[str, Any] | None:
    """Return an object of JSON as such; None if it is none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_list(value: object) -> list[Any] | None:
    """Return a list of JSON as such; None if it is none."""
    is_list = isinstance(value, list)  # a name, as checkers disagree about what it tells them
    return cast("list[Any]", value) if is_list else None


def _parse_any(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ImageError("its manifest or configuration is no JSON") from error


def _tag(descriptor: Mapping[str, Any]) -> str:
    annotations = as_object(descriptor.get("annotations")) or {}
    found = annotations.get(REF_NAME)
    return found if isinstance(found, str) else ""


def _map(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = as_object(value.get(key))
    if found is None:
        raise ImageError(f"`{key}` is missing in its manifest or configuration")
    return found


def _maps(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = as_list(value.get(key))
    maps = [each for each in map(as_object, found or []) if each is not None]
    if found is None or len(maps) != len(found):
        raise ImageError(f"`{key}` is missing in its manifest or index")
    return [*maps]


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    if not isinstance(found, str):
        raise ImageError(f"`{key}` is missing in its manifest")
    return found


def _texts(value: Mapping[str, Any], key: str) -> list[str]:
    found = as_list(value.get(key))
    texts = [each for each in found or [] if isinstance(each, str)]
    if found is None or len(texts) != len(found):
        raise ImageError(f"`{key}` is missing in its manifest or configuration")
    return texts


def _size(descriptor: Mapping[str, Any]) -> int:
    found = descriptor.get("size")
    if not isinstance(found, int) or found < 0:
        raise ImageError("its manifest names no size")
    return found


def _blob_path(digest: str) -> str:
    return "blobs/{}/{}".format(*split_digest(digest))
