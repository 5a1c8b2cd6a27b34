"""Images, unpacked: layers on layers, hostile layers, manifests that lie."""

from __future__ import annotations

import ast
import gzip
import importlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from image_world import (
    INDEX,
    Layout,
    configuration,
    digest,
    docker_archive,
    file,
    folder,
    hardlink,
    layer,
    other,
    symlink,
)
from nsmd.packages.images.layers import ImageError
from nsmd.packages.images.unpack import unpack


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


def unpacked(image: Path, root: Path, tag: str = "latest", **asked: Any) -> dict[str, Any]:
    """Unpack an image into a new directory."""
    root.mkdir()
    usual: dict[str, Any] = {
        "image": str(image),
        "tag": tag,
        "is_layout": False,
        "root": str(root),
        "digest": "",
        "files": {},
        "left_out": (),
        "programs": ("python3", "bash"),
        "max_files": 1000,
        "max_bytes": 10 << 20,
    }
    return unpack({**usual, **asked})


def of_layers(tmp_path: Path, *layers: bytes, **settings: Any) -> Path:
    """Unpack these layers; return the directory."""
    layout = Layout(tmp_path / "layout")
    layout.add(layers, **settings)
    unpacked(layout.place, tmp_path / "root")
    return tmp_path / "root"


def names(directory: Path) -> set[str]:
    """Paths of all files and directories below one."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*")} - {"etc"}


def test_files_are_as_the_layer_has_them(tmp_path: Path) -> None:
    late = file("late")
    late[0].mtime = 1_500_000_000
    root = of_layers(
        tmp_path,
        layer(
            folder("./bin", 0o700),
            file("bin/run", "#!", 0o4750),
            file("/absolute", "x", 0o600),
            file("a/b/c", "deep"),
            symlink("lib", "usr/lib"),
            hardlink("bin/again", "bin/run"),
            file("odd\nname\x01", "odd"),
            late,
        ),
    )
    assert names(root) == {
        *("bin", "bin/run", "bin/again", "absolute", "a", "a/b", "a/b/c", "lib"),
        *("odd\nname\x01", "late"),
    }
    # Everybody may read and run what its owner may, and nothing has a set-id bit.
    assert stat.S_IMODE((root / "bin/run").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "absolute").stat().st_mode) == 0o644
    assert (root / "bin/again").samefile(root / "bin/run")
    assert os.readlink(root / "lib") == "usr/lib"
    assert (root / "late").stat().st_mtime == 1_500_000_000


def test_devices_and_pipes_are_left_out(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    layout.add(
        [
            layer(
                other("dev/null", tarfile.CHRTYPE),
                other("dev/sda", tarfile.BLKTYPE),
                other("pipe", tarfile.FIFOTYPE),
                file("dev/file"),
            )
        ]
    )
    found = unpacked(layout.place, tmp_path / "root")
    assert found["left_out"] == 3
    assert names(tmp_path / "root") == {"dev", "dev/file"}


def test_whiteouts_hide_what_layers_below_have(tmp_path: Path) -> None:
    root = of_layers(
        tmp_path,
        layer(file("a/1"), file("a/2"), file("b/1"), file("b/c/1"), file("d"), file("e/1")),
        layer(
            file("a/.wh.1"),
            file("b/2"),
            file("b/.wh..wh..opq"),
            file("b/c/2"),
            file(".wh.d"),
            file(".wh.never-there"),
            # A file of the layer itself stays, whichever comes first.
            file("e/new"),
            file(".wh.e"),
        ),
    )
    assert names(root) == {"a", "a/2", "b", "b/2", "b/c", "b/c/2", "e", "e/new"}


@pytest.mark.parametrize("target", ["/", "../../../..", "/../..", "a/../../../..", "{outside}"])
def test_links_on_the_way_lead_nowhere_else(tmp_path: Path, target: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    target = target.format(outside=outside)
    root = of_layers(
        tmp_path,
        layer(folder("a"), symlink("out", target), file("out/new", "inside")),
        layer(file("out/.wh.kept"), file("out/more"), file("out/.wh..wh..opq")),
    )
    assert (outside / "kept").read_text() == "kept"
    assert {path.name for path in outside.iterdir()} == {"kept"}
    assert not (tmp_path / "new").exists()
    assert not Path("/new").exists()
    assert any(path.endswith("more") for path in names(root))


def test_a_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    root = of_layers(tmp_path, layer(symlink("x", str(victim)), file("x", "new")))
    assert victim.read_text() == "kept"
    assert (root / "x").read_text() == "new"


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([file("../x")], "leads out"),
        ([file("a/../../x")], "leads out"),
        ([symlink("a", "b"), symlink("b", "a"), file("a/x")], "too many symbolic links"),
        ([file("a"), file("a/x")], "is not a directory"),
        ([hardlink("x", "../../etc/passwd")], "leads out"),
        ([hardlink("x", "/etc/passwd")], "is missing"),
        ([folder("etc"), hardlink("x", "/etc/passwd")], "not to a file"),
        ([folder("etc"), hardlink("x", "etc")], "not to a file"),
        ([hardlink("x", "/")], "hard link to the root"),
        ([file(".wh...")], "hides nothing"),
        ([file(".wh.")], "hides nothing"),
        ([file("d/" * 300 + "x")], "directories deep"),
        ([file("etc")], "its /etc is not a directory"),
        ([symlink("etc", "/usr")], "its /etc is not a directory"),
        ([file(f"f{number}") for number in range(1001)], "more than 1000 files"),
        ([file("zeros", bytes(11 << 20))], "larger than 10 MiB"),
    ],
)
def test_a_hostile_layer_is_refused(tmp_path: Path, members: list[Any], why: str) -> None:
    with pytest.raises(ImageError, match=why):
        of_layers(tmp_path, layer(*members))
    assert {path.name for path in tmp_path.iterdir()} == {"layout", "root"}


def test_a_sparse_file_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("sparse")
    member.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.name": "sparse",
        "GNU.sparse.size": str(1 << 40),
        "GNU.sparse.map": "0,1",
    }
    member.size = 1
    with pytest.raises(ImageError, match="larger than 10 MiB"):
        of_layers(tmp_path, layer((member, b"x")))


def test_odd_names_of_files_are_told_in_one_line(tmp_path: Path) -> None:
    names = ["a\nb", "\x1b[2J", "-rf", "*", "\udcff"]
    root = of_layers(tmp_path, layer(*map(file, names)))
    assert {path.name for path in root.iterdir()} >= set(names)
    with pytest.raises(ImageError) as caught:
        of_layers(tmp_path / "other", layer(file("a\n\x1b[2J/../../x")))
    assert str(caught.value).isprintable()


BROKEN = {
    "no archive": b"no archive at all",
    "gzip's first bytes": b"\x1f\x8b",
    "half of gzip": gzip.compress(layer(file("x", b"y" * 5000)), mtime=0)[:-20],
    "no zstd": b"\x28\xb5\x2f\xfd broken",
    "half of an archive": layer(file("x", b"y" * 5000))[:3000],
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_layer_is_refused(layout: Layout, tmp_path: Path, broken: str) -> None:
    layout.add([BROKEN[broken]], compress=False)
    with pytest.raises(ImageError):
        unpacked(layout.place, tmp_path / "root")


def test_any_single_changed_byte_is_noticed(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    data = layer(file("x", "content"))
    layout.add([data])
    blobs = layout.place / "blobs" / "sha256"
    for number, path in enumerate(sorted(blobs.iterdir())):
        kept = path.read_bytes()
        for place in range(0, len(kept), 41):
            path.write_bytes(kept[:place] + bytes([kept[place] ^ 1]) + kept[place + 1 :])
            with pytest.raises(ImageError):
                unpacked(layout.place, tmp_path / f"root-{number}-{place}")
        path.write_bytes(kept)


Change = Callable[[dict[str, Any], dict[str, Any]], None]
"""Changes a manifest and a configuration."""


def _set(where: int, key: str, value: Any) -> Change:
    def change(*both: dict[str, Any]) -> None:
        both[where][key] = value

    return change


LIES: dict[str, tuple[Change, str]] = {
    "the layer's size": (lambda m, _: m["layers"][0].update(size=1), "its manifest says 1"),
    "a layer without size": (lambda m, _: m["layers"][0].pop("size"), "names no size"),
    "the diff id": (
        lambda _, c: c["rootfs"].update(diff_ids=[digest(b"")]),
        "not what its manifest says",
    ),
    "one more diff id": (
        lambda _, c: c["rootfs"]["diff_ids"].append(digest(b"")),
        "1 layers, and its configuration names 2",
    ),
    "another machine": (_set(1, "architecture", "m68k"), "it is for 'linux/m68k'"),
    "another system": (_set(1, "os", "windows"), "windows"),
    "layers that are none": (_set(0, "layers", {"a": 1}), "`layers` is missing"),
    "a digest that is a path": (
        lambda m, _: m["layers"][0].update(digest="sha256:../../../etc/passwd"),
        "is not a digest",
    ),
    "a digest of another kind": (
        lambda m, _: m["layers"][0].update(digest="md5:" + "0" * 32),
        "is not a digest",
    ),
    "a layer elsewhere": (
        lambda m, _: m["layers"][0].update(urls=["https://example.org"]),
        "outside the image",
    ),
    "a layer that is not there": (
        lambda m, _: m["layers"][0].update(digest=digest(b"nowhere")),
        "No such file",
    ),
    "no configuration": (_set(0, "config", None), "names no configuration"),
    "variables that are none": (_set(1, "config", {"Env": {"a": "b"}}), "variables"),
    "a variable with NUL": (_set(1, "config", {"Env": ["A=b\0c"]}), "variables"),
    "a long variable": (_set(1, "config", {"Env": ["A=" + "b" * 10000]}), "variables"),
    "a working directory": (_set(1, "config", {"WorkingDir": 7}), "working directory"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused(layout: Layout, tmp_path: Path, lie: str) -> None:
    change, why = LIES[lie]
    data = layer(file("x"))
    config = configuration([data])
    manifest: dict[str, Any] = {"layers": [layout.blob(gzip.compress(data))]}
    manifest["config"] = {}
    change(manifest, config)
    if manifest["config"] == {}:
        manifest["config"] = layout.blob(json.dumps(config).encode())
    layout.add_manifest(manifest, "latest")
    with pytest.raises(ImageError, match=why):
        unpacked(layout.place, tmp_path / "root")
    assert not names(tmp_path / "root") - {"x"}


def test_an_index_gives_what_is_for_this_machine(layout: Layout, tmp_path: Path) -> None:
    data = layer(file("ours"))
    ours = layout.add([data], tag="one")
    processors = ["m68k", configuration([])["architecture"]]
    manifests = [
        {**layout.index[0], "platform": {"os": "linux", "architecture": processor}}
        for processor in processors
    ]
    manifests[0]["digest"] = digest(b"nowhere")
    layout.add_manifest({"mediaType": INDEX, "manifests": manifests}, "all")
    assert unpacked(layout.place, tmp_path / "root", "all")["digest"] == ours
    layout.add_manifest({"mediaType": INDEX, "manifests": manifests[:1]}, "none")
    with pytest.raises(ImageError, match="it has: 'linux/m68k'"):
        unpacked(layout.place, tmp_path / "other", "none")


def test_a_layout_is_read_through_no_links(layout: Layout, tmp_path: Path) -> None:
    layout.add([layer(file("x"))])
    blobs = layout.place / "blobs"
    blobs.rename(tmp_path / "blobs")
    blobs.symlink_to(tmp_path / "blobs")
    with pytest.raises(ImageError, match="of the layout"):
        unpacked(layout.place, tmp_path / "root")


def test_an_archive_of_docker_save(tmp_path: Path) -> None:
    path = tmp_path / "saved.tar"
    docker_archive(path, [layer(file("a")), layer(file("b"))], "web:1", Env=["A=b=c", "PATH=/x"])
    found = unpacked(path, tmp_path / "root", "web:1")
    assert names(tmp_path / "root") == {"a", "b"}
    assert (found["variables"], found["path"]) == ({"A": "b=c"}, "/x")
    assert found["digest"].startswith("sha256:")
    with pytest.raises(ImageError, match="its images: 'web:1'"):
        unpacked(path, tmp_path / "other", "web:2")


@pytest.mark.parametrize("top", ["", "./"])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_of_a_layout(layout: Layout, tmp_path: Path, top: str, mode: str) -> None:
    layout.add([layer(file("a")), layer(file("b"))], tag="1")
    layout.add([layer(file("c"))], tag="2")
    path = tmp_path / "saved.tar"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(layout.place, top or "/")  # pyright: ignore[reportUnknownMemberType]
    found = unpacked(path, tmp_path / "root", "1", is_layout=True)
    assert names(tmp_path / "root") == {"a", "b"}
    assert found["digest"] == unpacked(layout.place, tmp_path / "same", "1")["digest"]
    with pytest.raises(ImageError, match="the layout has no image '3'; its tags: '1', '2'"):
        unpacked(path, tmp_path / "other", "3", is_layout=True)
    with pytest.raises(ImageError, match=r"no manifest\.json"):
        unpacked(path, tmp_path / "another", "1")


def test_a_compressed_archive_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "saved.tar"
    docker_archive(path, [layer(file("a"))], "web:1")
    packed = tmp_path / "saved.tar.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    unpacked(packed, tmp_path / "root", "web:1")
    assert names(tmp_path / "root") == {"a"}
    with tarfile.open(path, "a") as archive:
        member, content = file("zeros", bytes(11 << 20))
        archive.addfile(member, io.BytesIO(content))
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ImageError, match="its archive is larger than 10 MiB"):
        unpacked(packed, tmp_path / "other", "web:1")


NO_ARCHIVES = {
    "nothing": b"",
    "no archive": b"no archive",
    "no manifest": layer(file("x")),
    "no list": layer(file("manifest.json", "{}")),
}


@pytest.mark.parametrize("is_layout", [False, True])
@pytest.mark.parametrize("content", NO_ARCHIVES)
def test_an_archive_that_is_none_is_refused(
    tmp_path: Path, content: str, *, is_layout: bool
) -> None:
    path = tmp_path / "saved.tar"
    path.write_bytes(NO_ARCHIVES[content])
    with pytest.raises(ImageError):
        unpacked(path, tmp_path / "root", "", is_layout=is_layout)


def test_an_archive_whose_layer_was_exchanged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "saved.tar"
    docker_archive(path, [layer(file("a", "1"))], "web:1")
    changed = path.read_bytes().replace(layer(file("a", "1")), layer(file("a", "2")))
    path.write_bytes(changed)
    with pytest.raises(ImageError, match="not what its manifest says"):
        unpacked(path, tmp_path / "root", "")


def test_files_that_sessions_need_replace_those_in_etc(layout: Layout, tmp_path: Path) -> None:
    layout.add([layer(file("etc/ld.so.preload", "/evil.so"), symlink("etc/passwd", "/etc/shadow"))])
    unpacked(
        layout.place,
        tmp_path / "root",
        files={"passwd": "user"},
        left_out=("ld.so.preload", "never"),
    )
    assert names(tmp_path / "root") == {"etc/passwd"}
    assert not (tmp_path / "root/etc/passwd").is_symlink()
    assert (tmp_path / "root/etc/passwd").read_text() == "user"


def test_programs_are_found_on_the_images_own_path(layout: Layout, tmp_path: Path) -> None:
    layout.add(
        [
            layer(
                file("usr/bin/bash", mode=0o755),
                symlink("bin", "usr/bin"),
                symlink("opt/python3", "../usr/real"),
                file("usr/real", mode=0o755),
                file("no/bash"),  # nobody may run it
                symlink("loop/python3", "python3"),
            )
        ],
        Env=["PATH=relative:/no:/loop:/bin:/opt", "not a variable", "9=x"],
        WorkingDir="/bin",
    )
    found = unpacked(layout.place, tmp_path / "root")
    assert found["programs"] == {"python3": "/opt/python3", "bash": "/bin/bash"}
    assert (found["variables"], found["working_directory"]) == ({}, "/bin")
    assert os.readlink(tmp_path / "root/opt/python") == "python3"


@pytest.mark.parametrize("name", ["layers", "unpack"])
def test_the_program_in_the_jail_is_for_older_pythons(name: str) -> None:
    found = importlib.import_module(f"nsmd.packages.images.{name}").__file__
    assert found is not None
    ast.parse(Path(found).read_text(), feature_version=(3, 9))
