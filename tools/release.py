"""Build a release in `dist`: wheel, source archive, SBOM and provenance; check the wheel alone.

`make release` runs it; docs/contributing/releasing.md has the whole procedure.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PROVENANCE = "provenance.json"
BUILD_INPUTS = ("constraints.txt", "tools/constraints.txt", "pyproject.toml", "hatch_build.py")
"""Files that, with the commit, decide what is built: named in the provenance with their hashes."""

CHECK = """
import nsm, nsmbox, nsmd, sandbox_agent
from importlib.metadata import version
print(version("nsm-sessions"))
"""


class ReleaseError(Exception):
    """The release is not fit to be published; the message says why."""


def run(*command: str, cwd: Path = ROOT) -> str:
    """Run a command that has to succeed, and return its output."""
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True).stdout


def commit() -> str:
    """Return the commit that is checked out, of which nothing may have been changed."""
    if run("git", "status", "--porcelain"):
        raise ReleaseError("there are uncommitted changes: commit or stash them, then build again")
    return run("git", "rev-parse", "HEAD").strip()


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(directory: Path) -> dict[str, str]:
    """Build the source archive, and the wheel from it; return their names with their SHA-256."""
    shutil.rmtree(directory, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory))
    return {path.name: sha256(path) for path in sorted(directory.iterdir())}


def build_twice(again: Path) -> Path:
    """Build in `dist` and in a second directory; return the wheel if both came out the same."""
    first, second = build(DIST), build(again)
    if first != second:
        differ = ", ".join(name for name in first if first[name] != second.get(name))
        raise ReleaseError(f"two builds of the same commit differ: {differ}")
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check(wheel: Path, environment: Path) -> str:
    """Install the wheel with pinned dependencies in a new environment; return its version."""
    run(sys.executable, "-m", "venv", str(environment))
    python = str(environment / "bin/python")
    # Without hashes: pip would then ask for one of the wheel, too.
    pins = environment / "pins.txt"
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins.write_text("\n".join(line.rstrip("\\ ") for line in lines if "==" in line) + "\n")
    install = ["install", "--quiet", "--only-binary", ":all:", "--constraint", str(pins)]
    run(python, "-m", "pip", *install, str(wheel))
    version = run(python, "-I", "-c", CHECK, cwd=environment).strip()
    for program in ("nsm", "nsm-mcp", "nsm-supervisor"):
        said = run(str(environment / "bin" / program), "--version", cwd=environment)
        if version not in said:
            raise ReleaseError(f"{program} of the wheel says {said.strip()}, not {version}")
    return version


def write_sbom(environment: Path, version: str) -> Path:
    """Write the CycloneDX list of all packages that the clean environment has."""
    path = DIST / f"nsm_sessions-{version}.cdx.json"
    program = str(Path(sys.executable).parent / "cyclonedx-py")
    run(program, "environment", "--output-file", str(path), str(environment / "bin/python"))
    parts = json.loads(path.read_text(encoding="utf-8"))["components"]
    if not any(part["name"] == "nsm-sessions" for part in parts):
        raise ReleaseError(f"{path} does not list nsm-sessions")
    return path


def provenance(built_from: str, repository: str, builder: str, started: datetime) -> dict[str, Any]:
    """Describe who built what from which commit, as a predicate of SLSA provenance 1.0.

    It says nothing of the files that were built: who signs it names them (`sigstore attest`).
    """
    inputs = [{"uri": name, "digest": {"sha256": sha256(ROOT / name)}} for name in BUILD_INPUTS]
    return {
        "buildDefinition": {
            "buildType": f"{repository}/blob/{built_from}/docs/contributing/releasing.md",
            "externalParameters": {"command": "make release"},
            "internalParameters": {"python": sys.version.split()[0]},
            "resolvedDependencies": [
                {"uri": f"git+{repository}", "digest": {"gitCommit": built_from}},
                *inputs,
            ],
        },
        "runDetails": {
            "builder": {"id": builder},
            "metadata": {
                "startedOn": started.isoformat(timespec="seconds"),
                "finishedOn": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        },
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; what is not given is asked of git."""
    parser = argparse.ArgumentParser(prog="make release ARGS=", description="Build a release.")
    parser.add_argument("--repository", metavar="URL", help="default: git's remote `origin`")
    parser.add_argument(
        "--builder", metavar="URI", help="who builds; default: mailto: of git's user.email"
    )
    said = parser.parse_args(arguments)
    said.repository = said.repository or run("git", "remote", "get-url", "origin").strip()
    if not said.repository.startswith("https://"):
        parser.error("git's `origin` has no https:// address: give --repository URL")
    said.builder = said.builder or f"mailto:{run('git', 'config', 'user.email').strip()}"
    return said


def main(arguments: list[str] | None = None) -> int:
    """Build, check and describe the release."""
    os.environ.pop("PYTHONPATH", None)
    said, started = parse(arguments), datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="nsm-release-") as directory:
        environment = Path(directory, "environment")
        try:
            built_from = commit()
            os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct").strip()
            wheel = build_twice(Path(directory, "again"))
            write_sbom(environment, check(wheel, environment))
        except ReleaseError as error:
            print(f"release: {error}", file=sys.stderr)
            return 1
    predicate = provenance(built_from, said.repository, said.builder, started)
    (DIST / PROVENANCE).write_text(json.dumps(predicate, indent=2) + "\n", encoding="utf-8")
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes, sha256 {sha256(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
