"""Parts of a host's root directory that a jail shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsmd.jail.host import scan_host


def test_merged_usr(tmp_path: Path) -> None:
    for name in ("usr/bin", "usr/lib", "etc/ssl/certs", "etc/ssl/private"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "etc/ld.so.cache").touch()
    (tmp_path / "etc/shadow").touch()
    host = scan_host(str(tmp_path))
    assert host.links == (("usr/bin", "/bin"), ("usr/lib", "/lib"))
    assert host.directories == ()
    assert host.etc == ("/etc/ld.so.cache", "/etc/ssl/certs")


@pytest.mark.parametrize(
    ("programs", "links"),
    [
        (["usr/bin/python3"], (("/usr/bin/python3", "/run/nsm/bin/python"),)),
        (
            ["usr/bin/python3", "usr/local/bin/python3"],
            (("/usr/local/bin/python3", "/run/nsm/bin/python"),),
        ),
        (["usr/bin/python3", "usr/local/bin/python"], ()),
        ([], ()),
    ],
)
def test_python_is_a_name_of_a_lone_python3(
    tmp_path: Path, programs: list[str], links: tuple[tuple[str, str], ...]
) -> None:
    for name in programs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
    assert scan_host(str(tmp_path)).links == links


def test_directories_beside_usr(tmp_path: Path) -> None:
    for name in ("usr", "bin", "lib", "lib64"):
        (tmp_path / name).mkdir()
    (tmp_path / "sbin").symlink_to("bin")
    host = scan_host(str(tmp_path))
    assert host.directories == ("/bin", "/lib", "/lib64")
    assert host.links == (("bin", "/sbin"),)


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("ffffffff81000000 T _text", ("/proc/keys", "/proc/kallsyms")),
        ("0000000000000000 T _text", ("/proc/keys",)),
        ("", ("/proc/keys",)),
    ],
)
def test_addresses_of_the_kernel_are_hidden_if_they_are_told(
    tmp_path: Path, line: str, hidden: tuple[str, ...]
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/keys").touch()
    (tmp_path / "proc/kallsyms").write_text(f"{line}\n{line}\n")
    assert scan_host(str(tmp_path)).hidden == hidden
