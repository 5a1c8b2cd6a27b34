"""The program that unpacks an image, in a jail that shows the image and may write one directory.

Its argument is JSON: `image`, path of a layout or an archive; `is_layout`, the archive is one of a
layout; `tag`; `root`, path of the empty directory to unpack in; `answer`, path of the file with
what was found; `digest`, of the image that is expected, or empty; `files`, files to write into the
image's /etc, by name; `left_out`, names to remove there; `programs`, names to look for on the
image's PATH; `max_files` and `max_bytes`.
"""

from __future__ import annotations

import json
import os
import resource
import stat
import sys
from contextlib import closing

from nsmd.environments.images.image_files import (
    as_list,
    as_object,
    open_image,
)
from nsmd.environments.images.tree import ImageError, Tree, join, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MAX_MEMORY_BYTES = 1 << 30
"""Memory for headers of archives, which may name any size."""

MAX_VARIABLES = 500
MAX_VALUE_BYTES = 8 * 1024
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def unpack(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Unpack an image; return what was found.

    Raises:
        ImageError: it cannot be used.
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
        raise ImageError("its configuration has a `config` that is no object of JSON")
    lines = as_list(found.get("Env") or [])
    if lines is None or len(lines) > MAX_VARIABLES:
        raise ImageError(f"its variables are not a list of at most {MAX_VARIABLES} entries")
    variables: dict[str, str] = {}
    for line in lines:
        if not isinstance(line, str) or "\0" in line or len(line.encode()) > MAX_VALUE_BYTES:
            raise ImageError("one of its variables is no text, is too long, or has a NUL")
        name, equals, value = line.partition("=")
        if not equals or not (name.isidentifier() and name.isascii()):
            continue  # nothing could read it
        variables[name] = value
    path = variables.pop("PATH", "") or DEFAULT_PATH
    folder = found.get("WorkingDir") or ""
    if not isinstance(folder, str) or "\0" in folder:
        raise ImageError("its working directory is no text, or has a NUL")
    return {"variables": variables, "path": path, "working_directory": folder}


def _finish(tree: Tree, files: Mapping[str, str], left_out: Sequence[str]) -> None:
    """Write what sessions need into the image's /etc.

    Args:
        files: content by name.
        left_out: names to remove.
    """
    found = tree.status("etc")
    if found is not None and not stat.S_ISDIR(found.st_mode):
        raise ImageError("its /etc is no directory, and sessions need files there")
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
