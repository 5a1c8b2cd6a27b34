"""Build a release in `dist`: wheel, source archive and SBOM; check the wheel where nothing else is.

`make release` runs it; docs/contributing/releasing.md has the whole procedure.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
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


def build() -> Path:
    """Build the source archive, and the wheel from it; return the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST))
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


def main() -> int:
    """Build, check and describe the release."""
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="nsm-release-") as directory:
        environment = Path(directory, "environment")
        try:
            write_sbom(environment, check(build(), environment))
        except ReleaseError as error:
            print(f"release: {error}", file=sys.stderr)
            return 1
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
