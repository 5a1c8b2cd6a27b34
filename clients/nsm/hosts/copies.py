"""Copies of a project of this machine on a host: where they lie, and how they get there.

A copy has the files that git does not ignore, as they are. What was brought last is noted, so that
a call for which nothing has changed asks the host nothing.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import tarfile
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nsm import below, git, paths
from nsm.hosts.place import socket_of
from nsm.hosts.received import Seen, copies_dir, names_below, open_directory, seen_in
from nsm.hosts.ssh import connection_of, host_of, locked, read_facts
from nsm.hosts.tunnel import open_tunnel, read_answer, run_there
from nsm.wire.errors import HostError, HostUnreachableError, NotRunningError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from nsm.hosts.address import RemoteHost

MAX_FILES = 200_000

_OTHER_WAYS = "Correct that there, or set `project` of the host to another way (`path`, `none`)."


def place_there(host: RemoteHost, path: str) -> str:
    """The directory of a host that has the copy of a project; the host may have to be asked."""
    far_socket = socket_of(host)
    facts = read_facts(far_socket)
    if facts is None:
        try:
            open_tunnel(far_socket, autostart=False)
        except HostUnreachableError:
            raise
        except NotRunningError:
            pass  # whoever wants a session starts one
        facts = read_facts(far_socket)
    if facts is None:
        raise HostError(
            f"nsm on {host.name} did not tell the home directory there", hint="Try again."
        )
    return os.path.join(copies_dir(str(facts["home"])), *_names(host, path))


def bring(far_socket: str, path: str, *, anew: bool = False) -> None:
    """Bring a project to a host as it is now.

    Args:
        anew: ask the host which files it has, since somebody may have removed some.
    """
    host = host_of(far_socket)
    if anew:
        with suppress(FileNotFoundError):
            os.unlink(_note(host, far_socket, path))
    _copy(host, far_socket, path)


def _names(host: RemoteHost, path: str) -> tuple[str, str]:
    """Key and name of the copy of a project: those of no other machine's, nor of another's."""
    try:
        with open("/etc/machine-id", encoding="ascii") as file:
            machine = file.read().strip()  # empty in some containers
    except OSError:
        machine = ""
    facts = "\0".join((machine, os.uname().nodename, str(os.getuid()), host.project, path))
    key = hashlib.sha256(facts.encode(errors="surrogateescape")).hexdigest()
    return key[:12], os.path.basename(path)


def _copy(host: RemoteHost, far_socket: str, path: str) -> None:
    wanted = seen_in(path, _files(path))
    note = _note(host, far_socket, path)
    known = _noted(note)
    if known == wanted:
        return
    with locked(note, "copy.lock"):
        if not known:
            known = _ask(host, far_socket, ["--list", *_names(host, path)])["files"]
        changed = sorted(name for name, seen in wanted.items() if known.get(name) != seen)
        remove = sorted((known.keys() - wanted.keys()) | _in_the_way(known, changed))
        if changed or remove:
            with suppress(FileNotFoundError):
                os.unlink(note)  # until it is known to have arrived
            with tempfile.TemporaryFile(prefix="nsm-project-") as difference:
                _write_difference(difference, path, changed, remove)
                difference.seek(0)
                _ask(host, far_socket, _names(host, path), stdin=difference)
        paths.replace_file(note, json.dumps(wanted).encode())


def _in_the_way(known: dict[str, Seen], changed: Sequence[str]) -> set[str]:
    """Files there whose names are directories here, and the other way round."""
    folders = {parent for name in changed for parent in _parents(name)}
    ours = set(changed)
    return {name for name in known if name in folders or ours & _parents(name)}


def _parents(name: str) -> set[str]:
    parts = name.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


def _write_difference(
    file: IO[bytes], path: str, changed: Sequence[str], remove: Sequence[str]
) -> None:
    file.write(json.dumps({"remove": remove}).encode() + b"\n")
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        root = open_directory(path)
        try:
            for name in changed:
                _add(archive, root, name)
        finally:
            os.close(root)


def _add(archive: tarfile.TarFile, root: int, name: str) -> None:
    """Add a file or a link of the project, and nothing to which a link leads.

    What has gone meanwhile, or is something else by now, is left out: the next copy knows.
    """
    entry = tarfile.TarInfo(name)
    try:
        file = below.open_file(root, name, mounts=True)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ELOOP):
            raise
        with suppress(OSError):
            entry.type, entry.linkname = tarfile.SYMTYPE, below.read_link(root, name, mounts=True)
            archive.addfile(entry)
        return
    with open(file, "rb") as content:
        status = os.fstat(file)
        entry.size, entry.mode = status.st_size, status.st_mode & 0o777
        entry.mtime = status.st_mtime
        archive.addfile(entry, _Exactly(content, entry.size))


class _Exactly(io.RawIOBase):
    """A file of the size that was announced, although somebody may write to it meanwhile."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        """Read; zeros stand for what was cut off."""
        count = self._left if size < 0 else min(size, self._left)
        data = self._file.read(count)
        self._left -= count
        return data + bytes(count - len(data))


def _files(path: str) -> list[str]:
    """The files of a project that git does not ignore; all, where there is no repository. A
    `HostError` if there is one, and nobody knows what it ignores."""
    try:
        names = git.list_files(path, os.environ)
    except git.GitError as error:
        raise HostError(
            f"{path} was not copied, since nobody knows which files git ignores: {error}",
            hint="Repair the repository, which `git status` shows, or set `project` of the host to "
            "another way (`path`, `none`).",
        ) from error
    if names is None:
        names = list(names_below(path))
    if len(names) > MAX_FILES:
        raise HostError(
            f"{path} has {len(names)} files; at most {MAX_FILES} are copied",
            hint='Have git ignore what the sessions do not need, or use `project = "path"`.',
        )
    return names


def _ask(
    host: RemoteHost, far_socket: str, arguments: Sequence[str], stdin: IO[bytes] | None = None
) -> dict[str, Any]:
    """Have nsm there carry out `nsm host receive`; returns its answer."""
    connection = connection_of(far_socket)
    code, output, said = run_there(host, connection, ["host", "receive", *arguments], stdin=stdin)
    answer = read_answer(output)
    if answer is None:
        last = said.decode(errors="replace").strip().splitlines()[-1:]
        raise HostError(
            f"{host.name} did not take the project (exit code {code}): {' '.join(last)}",
            hint=_OTHER_WAYS,
        )
    if "error" in answer:
        raise HostError(
            f"{host.name} did not take the project: {answer['error']}", hint=_OTHER_WAYS
        )
    return answer


def _note(host: RemoteHost, far_socket: str, path: str) -> str:
    """The file that has what was brought last."""
    return os.path.join(os.path.dirname(far_socket), f"project-{_names(host, path)[0]}.json")


def _noted(note: str) -> dict[str, Any]:
    try:
        with open(note, encoding="utf-8") as file:
            return dict(json.load(file))
    except (FileNotFoundError, ValueError):
        return {}
