"""Layers of a few bytes that stand for very much: what they take of memory and of the disk."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from image_world import Layout, configuration, make_image, make_store
from nsm.wire.errors import PackagesFailedError
from nsmd.packages.images import image_install
from nsmd.packages.images.layers import PIECE_BYTES
from nsmd.packages.images.unpack import MAX_MEMORY_BYTES
from realjail import open_directory

MIB = 1 << 20
END = bytes(2 * tarfile.BLOCKSIZE)

UNPACK = """
import re, resource, sys
most = int(sys.argv.pop())
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
from nsmd.packages.images import unpack
unpack.main()
print(*re.findall(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read()))
"""
"""The program that unpacks, which prints the most memory that it had."""


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Make a header of a layer, whose file need not follow."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def add_layer(layout: Layout, parts: Iterable[tuple[bytes, int]]) -> None:
    """Add an image of one layer.

    Args:
        parts: bytes of the layer, and how often each comes. They are compressed once.
    """
    plain = hashlib.sha256()
    packed = bytearray()
    for data, times in parts:
        for _ in range(times):
            plain.update(data)
        packed += gzip.compress(data, 9, mtime=0) * times
    config = configuration([])
    config["rootfs"]["diff_ids"] = [f"sha256:{plain.hexdigest()}"]
    described = layout.blob(json.dumps(config).encode())
    layout.add_manifest({"config": described, "layers": [layout.blob(bytes(packed))]}, "latest")


def unpacked(
    tmp_path: Path, parts: Iterable[tuple[bytes, int]], memory: int = MAX_MEMORY_BYTES, **asked: Any
) -> tuple[dict[str, Any], int]:
    """Unpack a layer; return the answer, and the most memory that was used."""
    place = tmp_path / "place"
    layout = Layout(place / "layout")
    add_layer(layout, parts)
    (place / "root").mkdir()
    usual: dict[str, Any] = {
        "image": str(layout.place),
        "is_layout": False,
        "tag": "latest",
        "root": str(place / "root"),
        "answer": str(place / "answer"),
        "digest": "",
        "files": {},
        "left_out": (),
        "programs": (),
        "max_files": image_install.MAX_FILES,
        "max_bytes": image_install.MAX_BYTES,
    }
    command = [sys.executable, "-c", UNPACK, json.dumps({**usual, **asked}), str(memory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads((place / "answer").read_text())
    (place / "answer").unlink()
    return answer, int(done.stdout.split()[-1]) * 1024


@pytest.mark.slow
def test_gigabytes_of_zeros_take_neither_memory_nor_room(tmp_path: Path) -> None:
    size = 2 << 30
    piece = bytes(16 * MIB)
    answer, memory = unpacked(
        tmp_path, [(header("zeros", size), 1), (piece, size // len(piece)), (END, 1)]
    )
    assert answer.get("bytes") == size, answer
    found = (tmp_path / "place/root/zeros").stat()
    assert found.st_size == size
    assert found.st_blocks * 512 < 16 * MIB
    assert memory < 100 * MIB


def test_zeros_are_kept_where_they_are(tmp_path: Path) -> None:
    """Holes in place of whole pieces of zeros change nothing of a file."""
    zeros = bytes(PIECE_BYTES)
    texts = {
        "begin": zeros + b"x",
        "middle": b"x" * PIECE_BYTES + zeros * 2 + b"y",
        "end": b"x" * PIECE_BYTES + zeros,
        "across": b"x" + zeros * 2,
        "all": zeros,
    }
    parts = [
        (header(name, len(text)) + text + bytes(-len(text) % tarfile.BLOCKSIZE), 1)
        for name, text in texts.items()
    ]
    answer, _ = unpacked(tmp_path, [*parts, (END, 1)])
    assert answer.get("bytes") == sum(map(len, texts.values())), answer
    assert {name: (tmp_path / "place/root" / name).read_bytes() for name in texts} == texts


def test_zeros_behind_the_archive_count(tmp_path: Path) -> None:
    answer, memory = unpacked(tmp_path, [(bytes(16 * MIB), 5)], max_bytes=64 * MIB)
    assert answer == {"error": "its layers are larger than 64 MiB"}
    assert memory < 100 * MIB


@pytest.mark.slow
def test_a_million_files_fit_into_the_memory(tmp_path: Path) -> None:
    """Each takes so little that a million with long names do, of which these are a part."""
    few, many, longest = 1000, 20_000, "n" * 90

    def layer_of(count: int) -> list[tuple[bytes, int]]:
        names = [f"{number // 1000}/{longest}{number:07}" for number in range(count)]
        return [(b"".join(map(header, names)), 1), (END, 1)]

    answer, memory_of_few = unpacked(tmp_path / "few", layer_of(few))
    assert answer.get("files", 0) >= few, answer
    answer, memory = unpacked(tmp_path / "many", layer_of(many))
    assert answer.get("files", 0) >= many, answer
    each = (memory - memory_of_few) / (many - few)
    assert each * image_install.MAX_FILES < MAX_MEMORY_BYTES / 2


KINDS = {
    "files": [header(f"f{number}") for number in range(5001)],
    "the same file": [header("f")] * 5001,
    "the same directory": [header("d", kind=tarfile.DIRTYPE)] * 5001,
    "the root": [header("./", kind=tarfile.DIRTYPE)] * 5001,
    "devices": [header("d", kind=tarfile.CHRTYPE)] * 5001,
    "what hides files": [header(".wh.x")] * 5001,
}


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "files" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_everything_that_a_layer_names_counts(tmp_path: Path, kind: str) -> None:
    """A million take a second to send: what leaves nothing behind takes time, too."""
    answer, _ = unpacked(tmp_path, [(b"".join(KINDS[kind]), 1), (END, 1)], max_files=5000)
    assert answer == {"error": "its layers name more than 5000 files"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_a_gigabyte_is_refused(tmp_path: Path, kind: bytes) -> None:
    """`tarfile` reads headers of any size as a whole."""
    size, most = 1 << 30, 200 * MIB
    parts = [(header("x", size, kind), 1), (bytes(16 * MIB), 64), (header("x") + END, 1)]
    answer, memory = unpacked(tmp_path, parts, most)
    assert answer == {"error": "a layer takes too much memory: its names or headers are too large"}
    assert memory < most + 100 * MIB


@pytest.mark.jail
@pytest.mark.slow
async def test_a_file_larger_than_any_image_is_refused_before_it_is_written() -> None:
    with open_directory() as place:
        make_store(place)
        layout = Layout(place / "layout")
        add_layer(layout, [(header("zeros", 40 << 30), 1), (bytes(16 * MIB), 1)])
        with pytest.raises(PackagesFailedError, match="its files are larger than 32768 MiB"):
            await make_image(place, f"oci:{layout.place}")
        assert not [each for each in (place / "envs").iterdir() if not each.name.startswith(".")]
