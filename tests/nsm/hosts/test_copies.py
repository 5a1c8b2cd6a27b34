"""Copies of a project, on the machine that has it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from nsm.hosts import copies, received
from nsm.hosts.address import find_host
from nsm.wire.errors import HostError, HostUnreachableError

if TYPE_CHECKING:
    from pathlib import Path


def git(project: Path, *arguments: str) -> None:
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    subprocess.run(["git", "-C", str(project), *me, *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository, and a secret of the user's beside it."""
    (tmp_path / "ssh" / "deep").mkdir(parents=True)
    for key in ("ssh/id_victim", "ssh/deep/id_victim"):
        (tmp_path / key).write_text("secret")
    made = tmp_path / "project"
    made.mkdir()
    git(made, "init", "--quiet")
    (made / "file").write_text("mine")
    git(made, "add", "file")
    git(made, "commit", "--quiet", "-m", "one")
    return made


def listed(project: Path) -> list[str]:
    return sorted(copies._files(str(project)))  # pyright: ignore[reportPrivateUsage]


def written(project: Path, *names: str) -> dict[str, bytes | str]:
    """Contents of files, and targets of links, that are sent."""
    difference = io.BytesIO()
    copies._write_difference(difference, str(project), names, [])  # pyright: ignore[reportPrivateUsage]
    difference.seek(0)
    assert difference.readline() == b'{"remove": []}\n'
    sent: dict[str, bytes | str] = {}
    with tarfile.open(fileobj=difference, mode="r|") as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() else None
            sent[entry.name] = entry.linkname if content is None else content.read()
    return sent


def copied(project: Path) -> dict[str, bytes | str]:
    return written(project, *received.seen_in(str(project), listed(project)))


@pytest.mark.parametrize("name", ["a/id_victim", "a/deep/id_victim", "b/a/id_victim"])
def test_no_file_behind_a_link_is_copied(project: Path, tmp_path: Path, name: str) -> None:
    """Code in a box has git list a file of a directory that it then makes a link of."""
    (project / name).parent.mkdir(parents=True)
    (project / name).write_text("decoy")
    git(project, "add", "-f", name)
    link = project / name.removesuffix("/id_victim").removesuffix("/deep")
    exclude = project / ".git" / "info" / "exclude"
    exclude.write_text(f"/{link.relative_to(project)}\n")
    assert copied(project) == {"file": b"mine", name: b"decoy"}
    subprocess.run(["rm", "-r", str(link)], check=True)
    link.symlink_to(tmp_path / "ssh")
    assert (project / name).read_text() == "secret"
    assert name in listed(project)
    assert copied(project) == {"file": b"mine"}
    exclude.write_text("")
    assert copied(project) == {
        "file": b"mine",
        str(link.relative_to(project)): str(tmp_path / "ssh"),
    }


def test_a_change_during_a_copy_leads_nowhere(project: Path, tmp_path: Path) -> None:
    (project / "a").mkdir()
    for name in ("a/id_victim", "b", "c", "d"):
        (project / name).write_text("decoy")
    names = sorted(received.seen_in(str(project), listed(project)))
    assert names == ["a/id_victim", "b", "c", "d", "file"]
    (project / "a").rename(project / "old")
    (project / "a").symlink_to(tmp_path / "ssh")
    for name in ("b", "c", "d"):
        (project / name).unlink()
    (project / "b").symlink_to(tmp_path / "ssh" / "id_victim")
    subprocess.run(["mkfifo", str(project / "c")], check=True)
    assert written(project, *names) == {"b": str(tmp_path / "ssh" / "id_victim"), "file": b"mine"}


def test_files_with_two_names_are_copied_as_two(project: Path) -> None:
    (project / "other").hardlink_to(project / "file")
    assert copied(project) == {"file": b"mine", "other": b"mine"}


def test_a_project_is_not_copied_if_git_cannot_say_what_it_ignores(project: Path) -> None:
    (project / ".gitignore").write_text(".env\n")
    (project / ".env").write_text("secret")
    assert listed(project) == [".gitignore", "file"]
    (project / ".git" / "index").write_text("garbage")
    with pytest.raises(
        HostError, match=r"was not copied.*git says: .*index file smaller"
    ) as refused:
        listed(project)
    assert "git status" in refused.value.hint


def test_all_of_a_directory_without_a_repository_is_copied(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("mine")
    (tmp_path / "a" / "link").symlink_to("b")
    assert copied(tmp_path) == {"a/b/file": b"mine", "a/link": "b"}


def test_an_unreachable_host_is_reported_in_the_words_of_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the first question to a host: where the copy would lie."""
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\necho 'me@big: Permission denied (publickey).' >&2; exit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("NSM_SSH", str(program))
    # A path below pytest's may be too long for the socket.
    with TemporaryDirectory() as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        with pytest.raises(HostUnreachableError, match=r"Permission denied \(publickey\)"):
            copies.place_there(find_host("ssh://big"), "/home/me/project")


# Copies on the machine that has the sessions.


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Path(received.open_copy("0123456789ab", "shop"))


def difference(*entries: tuple[str, bytes], remove: tuple[str, ...] = ()) -> io.BytesIO:
    """A difference; contents that begin with `->` are links."""
    stream = io.BytesIO()
    stream.write(json.dumps({"remove": remove}).encode() + b"\n")
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            if content.startswith(b"->"):
                entry.type, entry.linkname = tarfile.SYMTYPE, content[2:].decode()
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    stream.seek(0)
    return stream


def test_a_difference_is_taken_over(copy: Path) -> None:
    received.receive(str(copy), difference(("src/a", b"1"), ("b", b"2"), ("link", b"->b")))
    assert (copy / "link").read_bytes() == b"2"
    told = received.receive(str(copy), difference(("b", b"33"), remove=("src/a", "link")))
    assert told == {"received": 1, "removed": 2}
    assert sorted(received.names_below(str(copy))) == ["b"]
    assert not (copy / "src").exists()
    assert received.seen_in(str(copy), ["b", "gone"]).keys() == {"b"}
    assert received.open_copy("0123456789ab", "shop") == str(copy)


def test_a_python_of_debian_12_takes_it_too(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract = tarfile.TarFile.extract

    def of_3_11_2(
        self: tarfile.TarFile,
        member: tarfile.TarInfo,
        path: str = "",
        set_attrs: bool = True,
        *,
        numeric_owner: bool = False,
    ) -> None:
        extract(self, member, path, set_attrs, numeric_owner=numeric_owner)

    monkeypatch.setattr(tarfile.TarFile, "extract", of_3_11_2)
    received.receive(str(copy), difference(("b", b"2"), ("link", b"->/etc")))
    assert (copy / "b").read_bytes() == b"2"
    assert (copy / "link").readlink() == Path("/etc")


@pytest.mark.parametrize("name", ["../out", "/out", "link/out", ".", "a/../../out"])
def test_a_difference_touches_no_file_outside(copy: Path, name: str) -> None:
    out = copy.parent / "out"
    out.write_text("mine")
    received.receive(str(copy), difference(("link", b"->..")))
    for asked in (difference((name, b"theirs")), difference(remove=(name,))):
        with pytest.raises(HostError, match="outside"):
            received.receive(str(copy), asked)
    assert out.read_text() == "mine"


def test_a_link_that_comes_meanwhile_leads_nowhere(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code in a session swaps a directory when its name has been looked at."""
    out = copy.parent / "out"
    out.mkdir()
    (out / "b").write_text("mine")
    received.receive(str(copy), difference(("src/b", b"1")))
    unlink = os.unlink

    def swapped(path: str, *, dir_fd: int | None = None) -> None:
        if not (copy / "src").is_symlink():
            (copy / "src").rename(copy / "old")
            (copy / "src").symlink_to(out)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", swapped)
    received.receive(str(copy), difference(("src/b", b"2")))
    assert (out / "b").read_text() == "mine"
    assert (copy / "old" / "b").read_text() == "2"


def test_a_directory_that_nsm_has_not_made_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    theirs = tmp_path / "nsm-projects" / "0123456789ab"
    theirs.mkdir(parents=True)
    (theirs / "notes").touch()
    with pytest.raises(HostError, match="nsm has not made it"):
        received.open_copy("0123456789ab", "shop")
    assert list(theirs.parent.iterdir()) == [theirs]
    (theirs / "notes").unlink()
    assert received.open_copy("0123456789ab", "shop") == str(theirs / "shop")
    for key, name in (("../x", "shop"), ("0123456789ab", ".."), ("0123456789ab", "a/b")):
        with pytest.raises(HostError, match="name no copy"):
            received.open_copy(key, name)
