"""The program that unpacks an image, in a jail that shows the image and may write one directory.

The image is in an OCI layout, in an archive of one, or in an archive that `docker save` wrote. All
that is read of it is hostile; whatever has a digest is compared with it.

The program's argument is JSON: `image`, path of a layout or an archive; `is_layout`, the archive is
one of a layout; `tag`; `root`, path of the empty directory to unpack in; `answer`, path of the file
with what was found; `digest`, of the image that is expected, or empty; `files`, files to write into
the image's /etc, by name; `left_out`, names to remove there; `programs`, names to look for on the
image's PATH; `max_files` and `max_bytes`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import stat
import sys
import tarfile
import tempfile
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, cast

from nsmd.packages.images.layers import (
    PIECE_BYTES,
    ImageError,
    Layer,
    Tree,
    join,
    shown,
    split_digest,
)

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

    Args:
        config: its configuration, which must be for this machine.
        layers: path, digest and size of each, the lowest first; empty and -1 if nothing says them.

    Attributes:
        digest: hash of its manifest; of an archive without one, that of its configuration.
    """

    def __init__(
        self,
        files: LayoutFolder | Archive,
        digest: str,
        config: Mapping[str, Any],
        layers: Sequence[tuple[str, str, int]],
    ) -> None:
        self.digest = digest
        self.config = config
        self._files = files
        self._layers = layers
        system, processor = config.get("os"), config.get("architecture")
        if (system, processor) != ("linux", architecture()):
            raise ImageError(
                f"it is for {shown(f'{system}/{processor}')}, and this machine is "
                f"linux/{architecture()}"
            )

    def close(self) -> None:
        """Close its files."""
        self._files.close()

    def layers(self, max_bytes: int) -> list[Layer]:
        """The layers, the lowest first."""
        count = len(self._layers)
        diff_ids = _texts(_map(self.config, "rootfs"), "diff_ids")
        if len(diff_ids) != count:
            raise ImageError(f"it has {count} layers, and its configuration names {len(diff_ids)}")
        if count > MAX_LAYERS:
            raise ImageError(f"it has {count} layers, and nsm takes at most {MAX_LAYERS}")
        return [
            Layer(
                partial(self._files.open, path),
                digest=digest,
                size=size,
                diff_id=diff_id,
                max_bytes=max_bytes,
            )
            # Without `strict`, which Python 3.9 has not: the lengths were compared.
            for (path, digest, size), diff_id in zip(self._layers, diff_ids)  # noqa: B905
        ]


class LayoutFolder:
    """The directory of an OCI layout."""

    def __init__(self, path: str) -> None:
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._root)

    def open(self, path: str) -> BinaryIO:
        """Open a regular file, through no links."""
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
            raise ImageError(f"{shown(path)} of the layout is not a file")
        return os.fdopen(fd, "rb")


class Archive:
    """An archive whose files are read in any order."""

    def __init__(self, path: str, max_bytes: int) -> None:
        with ExitStack() as opened:
            try:
                file = opened.enter_context(_uncompressed(path, max_bytes))
                self._archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  # it owns none
                # The whole archive is looked through, as names may come in any order.
                self._names = {name.removeprefix("./"): name for name in self._archive.getnames()}
            except (tarfile.TarError, OSError, EOFError, ValueError) as error:
                said = str(error)[:200]
                raise ImageError(f"it is not an archive of an image: {said}") from error
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def has(self, name: str) -> bool:
        """Return whether it has a file of that name."""
        return name in self._names

    def open(self, name: str) -> BinaryIO:
        """Open a file."""
        try:
            # Through links within the archive.
            file = self._archive.extractfile(self._names.get(name, name))
        except (KeyError, tarfile.TarError, RecursionError) as error:
            raise ImageError(f"the archive has no {shown(name)}") from error
        if file is None:
            raise ImageError(f"{shown(name)} of the archive is not a file")
        return file  # type: ignore[return-value]


def open_image(path: str, tag: str, max_bytes: int, *, is_layout: bool) -> ImageFiles:
    """Open an image.

    Args:
        tag: which image of the layout or archive; empty for the only one.
        is_layout: an archive is read as that of a layout. `docker save` writes files of both kinds.
    """
    is_folder = os.path.isdir(path)
    files = LayoutFolder(path) if is_folder else Archive(path, max_bytes)
    try:
        if isinstance(files, LayoutFolder) or is_layout:
            return _of_layout(files, tag)
        return _of_docker(files, tag)
    except BaseException:
        files.close()
        raise


def _of_layout(files: LayoutFolder | Archive, tag: str) -> ImageFiles:
    """Read an image of an OCI layout."""

    def blob(descriptor: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read a small blob, and compare it with its digest and size."""
        digest = _text(descriptor, "digest")
        data = _read(files.open(_blob_path(digest)), MAX_JSON_BYTES)
        algorithm, digits = split_digest(digest)
        if hashlib.new(algorithm, data).hexdigest() != digits or len(data) != _size(descriptor):
            raise ImageError(f"{digest[:26]} is not what its digest says")
        return parse(data)

    index = parse(_read(files.open("index.json"), MAX_JSON_BYTES))
    descriptor = _named(_maps(index, "manifests"), tag)
    for _ in range(MAX_INDEXES):
        if descriptor.get("mediaType") not in _INDEXES:
            break
        descriptor = _for_this_machine(blob(descriptor))
    digest = _text(descriptor, "digest")
    manifest = blob(descriptor)
    if as_object(manifest.get("config")) is None:
        raise ImageError("its manifest names no configuration")
    config = blob(_map(manifest, "config"))
    layers = _maps(manifest, "layers")
    if any(each.get("urls") for each in layers):
        raise ImageError("one of its layers is kept outside the image (`urls`)")
    digests = [(_text(each, "digest"), _size(each)) for each in layers]
    return ImageFiles(
        files, digest, config, [(_blob_path(each), each, size) for each, size in digests]
    )


def _named(manifests: Sequence[Mapping[str, Any]], tag: str) -> Mapping[str, Any]:
    """The descriptor of the image with a tag in a layout."""
    if not tag and len(manifests) == 1:
        return manifests[0]
    tags: dict[str, Mapping[str, Any]] = {}
    for each in manifests:
        tags.setdefault(_tag(each), each)
    if not tag or tag not in tags:
        known = ", ".join(shown(each) for each in list(tags)[:10] if each) or "none"
        raise ImageError(f"the layout has no image {shown(tag)}; its tags: {known}")
    return tags[tag]


def _of_docker(archive: Archive, tag: str) -> ImageFiles:
    """Read an image of an archive of `docker save`; the tag is as in `docker images`."""
    if not archive.has("manifest.json"):
        raise ImageError("the archive has no manifest.json, as `docker save` writes")
    images = as_list(_parse_any(_read(archive.open("manifest.json"), MAX_JSON_BYTES)))
    if images is None:
        raise ImageError("its manifest.json is not what `docker save` writes")
    found = (as_object(each) for each in images)
    manifest = _chosen([each for each in found if each is not None], tag)
    config = _read(archive.open(_text(manifest, "Config")), MAX_JSON_BYTES)
    digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
    layers = [(name, "", -1) for name in _texts(manifest, "Layers")]
    return ImageFiles(archive, digest, parse(config), layers)


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
            raise ImageError("its index has a platform that is not an object of JSON")
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
    """Parse an object of JSON."""
    found = as_object(_parse_any(data))
    if found is None:
        raise ImageError("its manifest or configuration is not an object of JSON")
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
        raise ImageError("its manifest or configuration is not JSON") from error


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


MAX_MEMORY_BYTES = 1 << 30
"""Memory for headers of archives, which may name any size."""

MAX_VARIABLES = 500
MAX_VALUE_BYTES = 8 * 1024
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def unpack(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Unpack an image; return what was found.

    Raises:
        OSError: there is no room.
    """
    opened = open_image(
        asked["image"], asked["tag"], asked["max_bytes"], is_layout=asked["is_layout"]
    )
    with closing(opened) as image:
        if asked["digest"] not in {"", image.digest}:
            raise ImageError(f"it is {image.digest[:26]} now, and {asked['digest'][:26]} is wanted")
        # Before anything is written: most of what is wrong with an image is found here.
        settings = _settings(image.config)
        layers = image.layers(asked["max_bytes"])
        bounds = {"max_files": asked["max_files"], "max_bytes": asked["max_bytes"]}
        with closing(Tree(asked["root"], **bounds)) as tree:
            for number, layer in enumerate(layers, 1):
                sys.stdout.write(f"layer {number} of {len(layers)}\n")
                sys.stdout.flush()
                layer.apply(tree)
            _finish(tree, asked["files"], asked["left_out"])
            programs = _programs(tree, settings["path"], asked["programs"])
            _name_python(tree, settings["path"])
            return {
                "digest": image.digest,
                "files": tree.files,
                "bytes": tree.size,
                "left_out": sum(layer.left_out for layer in layers),
                "layers": [layer.diff_id for layer in layers],
                **settings,
                "working_directory": _folder(tree, settings["working_directory"]),
                "programs": programs,
            }


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings of a configuration that sessions take."""
    found = as_object(config.get("config") or {})
    if found is None:
        raise ImageError("its configuration has a `config` that is not an object of JSON")
    lines = as_list(found.get("Env") or [])
    if lines is None or len(lines) > MAX_VARIABLES:
        raise ImageError(f"its variables are not a list of at most {MAX_VARIABLES} entries")
    variables: dict[str, str] = {}
    for line in lines:
        if not isinstance(line, str) or "\0" in line or len(line.encode()) > MAX_VALUE_BYTES:
            raise ImageError("one of its variables is not text, is too long, or has a NUL")
        name, equals, value = line.partition("=")
        if not equals or not (name.isidentifier() and name.isascii()):
            continue  # nothing could read it
        variables[name] = value
    path = variables.pop("PATH", "") or DEFAULT_PATH
    folder = found.get("WorkingDir") or ""
    if not isinstance(folder, str) or "\0" in folder:
        raise ImageError("its working directory is not text, or has a NUL")
    return {"variables": variables, "path": path, "working_directory": folder}


def _finish(tree: Tree, files: Mapping[str, str], left_out: Sequence[str]) -> None:
    """Write what sessions need into the image's /etc."""
    found = tree.status("etc")
    if found is not None and not stat.S_ISDIR(found.st_mode):
        raise ImageError("its /etc is not a directory, and sessions need files there")
    tree.directory(["etc"], make=True)
    for name in left_out:
        tree.remove(join("etc", name))
    for name, content in files.items():
        tree.write(join("etc", name), content.encode())


def _folder(tree: Tree, path: str) -> str:
    """A directory of the image, if sessions have it; else empty."""
    if path and not path.strip("/"):
        return "/"
    found = tree.find(path) if path.startswith("/") else None
    return path if found is not None and stat.S_ISDIR(found.st_mode) else ""


def _programs(tree: Tree, path: str, names: Sequence[str]) -> dict[str, str]:
    """Find programs on the image's PATH."""
    found: dict[str, str] = {}
    for name in names:
        for folder in path.split(":"):
            there = join(folder.strip("/"), name)
            status = tree.find(there) if folder.startswith("/") else None
            if status and stat.S_ISREG(status.st_mode) and status.st_mode & 0o111:
                found[name] = f"/{there}"
                break
    return found


def _name_python(tree: Tree, path: str) -> None:
    """Make a link `python` beside an image's `python3` if PATH has none: models type that."""
    found = _programs(tree, path, ("python", "python3"))
    if "python" in found or "python3" not in found:
        return
    place = join(tree.directory(found["python3"].split("/")[:-1], make=False), "python")
    if tree.status(place) is None:
        tree.count()
        os.symlink("python3", place, dir_fd=tree.root)


def main() -> None:
    """Unpack the image of the argument."""
    asked = json.loads(sys.argv[1])
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        answer = unpack(asked)
    except ImageError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": f"{error.strerror} ({shown(str(error.filename or ''))})"}
    with open(asked["answer"], "x", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
