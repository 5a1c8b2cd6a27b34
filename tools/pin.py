"""Write `constraints.txt` and those of the benchmarks and the docs: exact versions with hashes.

Versions are resolved by pip for the oldest supported Python (conditional requirements are
backports, so its closure is the largest), then checked to be complete for the others. Hashes come
from pip's installation report, one dry run for each Python, processor and C library, because a
release has several wheels and each machine picks another one. Only wheels are listed: set-up then
never runs a package's build script. No file names an index; pip uses the one that the machine
is configured for.

    make pin            # newest versions that pyproject.toml allows
    .venv/bin/python tools/pin.py --keep    # add what is missing, and change nothing else
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
MAIN = ROOT / "constraints.txt"
EXTRAS = {
    "bench": (ROOT / "benchmarks" / "constraints.txt", "What `make bench` needs beyond that"),
    "docs": (ROOT / "docs" / "constraints.txt", "What `make docs` needs beyond that"),
    "tools": (ROOT / "tools" / "constraints.txt", "What coverage and releases need beyond that"),
}
"""Dependency groups that have a file of their own, and its first line."""

PYTHONS = ("3.11", "3.12", "3.13", "3.14")  # 3.14: installable, not yet tested
MACHINES = ("x86_64", "aarch64")
OLDEST_GLIBC = 28  # Debian 10, RHEL 8; older systems have no Python 3.11
# A wheel for a newer C library is preferred where it fits: one run for each step in use.
GLIBC_MINORS = (OLDEST_GLIBC, 31, 34, 39)
PARALLEL_RUNS = 4

# Needed by `pip install --no-build-isolation --editable .`; editables is what hatchling asks for.
BUILD_EXTRAS = ("editables",)

HEADER = """\
# Written by tools/pin.py; do not edit.
# {what} for CPython {first} to {last} on Linux {machines}, wheels only.
--only-binary :all:
"""


class PinError(Exception):
    """pip could not resolve or a platform lacks a wheel; the message has pip's own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One kind of machine: a Python version and the wheel tags it accepts.

    Attributes:
        pip: the Python whose pip is asked. It refuses packages that need a newer one.
        source: packages that have no wheel. With any, the machine is this one.
    """

    python: str
    machine: str
    glibc_minor: int
    pip: str = sys.executable
    source: tuple[str, ...] = ()

    def pip_options(self) -> list[str]:
        """The options that make pip resolve for this machine instead of its own."""
        if self.source:
            return ["--no-binary", ",".join(self.source)]
        options = ["--python-version", self.python, "--implementation", "cp"]
        for abi in (f"cp{self.python.replace('.', '')}", "abi3", "none"):
            options += ["--abi", abi]
        for tag in self.platforms():
            options += ["--platform", tag]
        return options

    def platforms(self) -> Iterator[str]:
        """Wheel platform tags, best first (PEP 600: newer C libraries run older wheels)."""
        legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
        for minor in range(self.glibc_minor, 4, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in legacy:
                yield f"{legacy[minor]}_{self.machine}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A package in one version, as pip reported it."""

    name: str
    version: str
    sha256: str
    requires: tuple[str, ...]


def targets() -> list[Target]:
    """Every kind of machine whose wheels are listed."""
    return [
        Target(python=python, machine=machine, glibc_minor=minor)
        for python in PYTHONS
        for machine in MACHINES
        for minor in GLIBC_MINORS
    ]


def report(requirements: Iterable[str], target: Target, *options: str) -> list[Pin]:
    """Let pip resolve `requirements` for `target` without installing anything.

    Raises:
        PinError: pip refused.
    """
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        answer = Path(scratch, "report.json")
        command = [target.pip, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--disable-pip-version-check", "--ignore-installed", "--only-binary", ":all:"]
        command += ["--target", str(Path(scratch, "nothing")), "--report", str(answer)]
        command += ["--requirement", str(wanted), *target.pip_options(), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PinError(f"pip cannot resolve for {target}:\n{done.stderr.strip()}")
        return [pin_of(entry) for entry in json.loads(answer.read_bytes())["install"]]


def pin_of(entry: Mapping[str, Any]) -> Pin:
    """One entry of pip's installation report."""
    metadata = entry["metadata"]
    return Pin(
        name=canonicalize_name(metadata["name"]),
        version=metadata["version"],
        sha256=entry["download_info"]["archive_info"]["hashes"]["sha256"],
        requires=tuple(metadata.get("requires_dist", ())),
    )


def pinned(path: Path) -> dict[str, str]:
    """The versions that a constraints file names."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pins = [line.removesuffix(" \\").partition(" ; ")[0].partition("==") for line in lines]
    return {name: version for name, found, version in pins if found}


def missing(pins: Sequence[Pin], roots: Iterable[str], python: str) -> set[str]:
    """Names that `roots` and what they require need on `python` but `pins` lacks."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    by_name = {pin.name: pin for pin in pins}
    absent: set[str] = set()
    seen: set[tuple[str, str]] = set()
    queue: list[tuple[str, str]] = []

    def need(line: str, extra: str) -> None:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or marker.evaluate({**environment, "extra": extra}):
            name = canonicalize_name(requirement.name)
            queue.extend((name, wanted) for wanted in {"", *requirement.extras})

    for line in roots:
        need(line, "")
    while queue:
        name, extra = item = queue.pop()
        if item in seen:
            continue
        seen.add(item)
        if name not in by_name:
            absent.add(name)
            continue
        for line in by_name[name].requires:
            need(line, extra)
    return absent


def resolve(roots: Sequence[str], fixed: Mapping[str, str]) -> dict[str, str]:
    """Versions of everything that `roots` need, where `fixed` names versions already chosen."""
    oldest = Target(python=PYTHONS[0], machine=MACHINES[0], glibc_minor=OLDEST_GLIBC)
    pins = report([*roots, *(f"{name}=={version}" for name, version in fixed.items())], oldest)
    for python in PYTHONS:
        if absent := missing(pins, roots, python):
            raise PinError(f"Python {python} also needs {sorted(absent)}: require them by name")
    return {pin.name: pin.version for pin in pins}


def markers(roots: Iterable[str]) -> dict[str, Marker]:
    """The conditions under which `roots` are needed at all, of those that have one."""
    requirements = [Requirement(line) for line in roots]
    return {canonicalize_name(each.name): each.marker for each in requirements if each.marker}


def hashes(
    versions: Mapping[str, str], only: Mapping[str, Marker], chosen: Sequence[Target] = ()
) -> dict[str, set[str]]:
    """SHA-256 of every wheel of `versions` that one of the targets would pick.

    Args:
        chosen: targets; all, if there are none.
        only: a package named here counts for the targets that fulfil its condition.
    """
    found: dict[str, set[str]] = {name: set() for name in versions}

    def wheels(target: Target) -> list[Pin]:
        environment = {"platform_machine": target.machine, "python_version": target.python}
        lines = [
            f"{name}=={version}"
            for name, version in versions.items()
            if name not in only or only[name].evaluate(environment)
        ]
        return report(lines, target, "--no-deps")

    with ThreadPoolExecutor(PARALLEL_RUNS) as pool:
        for pins in pool.map(wheels, chosen or targets()):
            for pin in pins:
                found[pin.name].add(pin.sha256)
    return found


def lock(
    roots: Sequence[str],
    *,
    python: str,
    pip: str,
    only: Sequence[str] | None = None,
    source: Sequence[str] = (),
) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Versions and hashes of what nsm and `roots` need, for one Python only.

    Args:
        pip: a Python of that version.
        only: names of nsm's dependencies to take; None for all.
        source: packages that have no wheel. Then it is for this machine only.

    Raises:
        PinError: pip could not resolve them.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dependencies: list[str] = project["project"]["dependencies"]
    chosen_ones = [line for line in dependencies if only is None or Requirement(line).name in only]
    wanted = [*chosen_ones, *roots]
    chosen = [replace(target, pip=pip) for target in targets() if target.python == python]
    if source:
        chosen = [replace(chosen[0], source=tuple(source))]
    oldest = report(wanted, chosen[0])
    if absent := missing(oldest, wanted, python):
        raise PinError(f"Python {python} also needs {sorted(absent)}: require them by name")
    versions = {pin.name: pin.version for pin in oldest}
    return versions, hashes(versions, {}, chosen)


def render(
    versions: Mapping[str, str],
    found: Mapping[str, Iterable[str]],
    only: Mapping[str, Marker],
    what: str,
    *,
    pythons: Sequence[str] = PYTHONS,
    source: Sequence[str] = (),
) -> str:
    """A requirements file in pip's hash-checking form."""
    machines = platform.machine() if source else " and ".join(MACHINES)
    header = HEADER.format(what=what, first=pythons[0], last=pythons[-1], machines=machines)
    lines = [header, *(f"--no-binary {name}\n" for name in source)]
    for name in sorted(versions):
        digests = [f"    --hash=sha256:{digest}" for digest in sorted(found[name])]
        condition = f" ; {only[name]}" if name in only else ""
        lines.append(" \\\n".join([f"{name}=={versions[name]}{condition}", *digests]) + "\n")
    return "".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Resolve, hash and write all files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="keep the versions that are pinned")
    keep = parser.parse_args(argv).keep
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = cast("dict[str, list[str]]", project["dependency-groups"])
    roots = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    roots += [*groups["dev"], *BUILD_EXTRAS]
    try:
        main_versions = resolve(roots, pinned(MAIN) if keep else {})
        extra_versions = dict[str, dict[str, str]]()
        together = dict(main_versions)
        for group, (path, _) in EXTRAS.items():
            # One environment may get all groups, so a later one takes the versions of an earlier.
            kept = pinned(path) if keep and path.exists() else {}
            wanted = resolve([*roots, *groups[group]], kept | main_versions)
            shared = {name: together[name] for name in wanted.keys() & together.keys()}
            if shared.items() - wanted.items():
                wanted = resolve([*roots, *groups[group]], kept | main_versions | shared)
            extra_versions[group] = {
                name: version for name, version in wanted.items() if name not in main_versions
            }
            together |= wanted
        only = markers(roots)
        found = hashes(together, only)
    except PinError as error:
        print(f"pin: {error}", file=sys.stderr)
        return 1
    files = [(MAIN, main_versions, "What nsm, its build and its tests need")]
    files += [(path, extra_versions[group], what) for group, (path, what) in EXTRAS.items()]
    for path, versions, what in files:
        path.write_text(render(versions, found, only, what), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(versions)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
