"""Run the tests of adapters, each with its framework in a virtual environment of its own.

Frameworks pin versions that conflict with each other and with nsm's. So each has a directory in
`tests/integrations` with `requirements.txt`, what its tests need beside nsm, and `constraints.txt`,
exact versions with hashes of all of it. The environments are kept in `build/integrations`. Where
there is `package.json` with its lock file, npm installs that, too, in `npm` of the environment.

Lines of `requirements.txt` that are ours: `# python: 3.12` names the Python that the packages need.
`# source: NAME` names a package that has no wheel; then the versions are pinned for one machine.
`# nsm: clients` says that they conflict with what the supervisor needs: then only nsm's clients are
installed there, and the tests use the supervisor of the Python that runs this program.
`# oldest: NAME==1.2 --hash=sha256:...` is the oldest release that the adapter works with: the tests
run once more in an environment that has it in place of the pinned one.

    make test-integrations                           # all of them
    make test-integrations ARGS='smolagents -k probe'
    .venv/bin/python tools/integrations.py --pin smolagents    # write its constraints.txt again
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pin

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "integrations"
ENVIRONMENTS = ROOT / "build" / "integrations"
STAMP = "nsm-made-from"
ALWAYS = ("pytest>=8.4", "hatchling>=1.27", "editables")
DEFAULT_PYTHON = "3.11"
NPM_OPTIONS = ("--ignore-scripts", "--no-audit", "--no-fund", "--engine-strict")
PYTHON = re.compile(r"^# python: (3\.\d+)$", re.MULTILINE)
CLIENTS_ONLY = re.compile(r"^# nsm: clients$", re.MULTILINE)
CLIENTS_NEED = ("anyio", "cbor2", "trio")
"""Dependencies of nsm that `nsm.integrations` imports."""
OLDEST = re.compile(r"^# oldest: (.+)$", re.MULTILINE)
SOURCE = re.compile(r"^# source: (\S+)$", re.MULTILINE)
PYENV = ".pyenv/versions"
WHAT = "What the tests of the adapter for {name} need"


class UnavailableError(Exception):
    """The packages, or a Python for them, can't be had here; the message says which."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework whose adapter is tested.

    Attributes:
        oldest: it is the oldest release that is supported, and not the pinned one.
    """

    name: str
    oldest: bool = False

    @property
    def directory(self) -> Path:
        """Directory of its tests."""
        return TESTS / self.name

    @property
    def environment(self) -> Path:
        """Directory of its virtual environment."""
        return ENVIRONMENTS / (f"{self.name}-oldest" if self.oldest else self.name)

    @property
    def _text(self) -> str:
        return (self.directory / "requirements.txt").read_text(encoding="utf-8")

    @property
    def oldest_releases(self) -> list[str]:
        """The oldest releases, with their hashes, as pip takes them."""
        return OLDEST.findall(self._text)

    @property
    def requirements(self) -> list[str]:
        """Lines that name packages."""
        lines = [line.partition(" #")[0].strip() for line in self._text.splitlines()]
        return [line for line in lines if line and not line.startswith("#")]

    @property
    def python(self) -> str:
        """Version of Python that its packages are pinned for."""
        found = PYTHON.search(self._text)
        return found[1] if found else DEFAULT_PYTHON

    @property
    def clients_only(self) -> bool:
        """Tell whether the supervisor has to be elsewhere."""
        return CLIENTS_ONLY.search(self._text) is not None

    def interpreter(self) -> str:
        """Find a Python of that version.

        Raises:
            UnavailableError: there is none.
        """
        if "{}.{}".format(*sys.version_info) == self.python:
            return sys.executable
        name = f"python{self.python}"
        of_pyenv = sorted((Path.home() / PYENV).glob(f"{self.python}.*/bin"), reverse=True)
        for directory in [*os.get_exec_path(), *map(str, of_pyenv)]:
            path = shutil.which(name, path=directory)
            # A shim of pyenv may be there and run nothing.
            if path is not None:
                tried = subprocess.run([path, "-c", ""], capture_output=True, check=False)
                if tried.returncode == 0:
                    return path
        raise UnavailableError(
            f"it is tested with Python {self.python}, and none is on PATH or of pyenv"
        )

    def prepare(self) -> Path:
        """Make its virtual environment, unless it is there.

        Returns:
            Its Python.

        Raises:
            UnavailableError: something for it can't be had here.
        """
        constraints = self.directory / "constraints.txt"
        npm_lock = self.directory / "package-lock.json"
        made_of = (constraints, ROOT / "pyproject.toml", *([npm_lock] if npm_lock.exists() else []))
        parts = [path.read_bytes() for path in made_of]
        if self.oldest:
            parts += [line.encode() for line in self.oldest_releases]
        interpreter = self.interpreter()
        stamp = hashlib.sha256(b"\0".join([*parts, interpreter.encode()])).hexdigest()
        python = self.environment / "bin" / "python"
        made_from = self.environment / STAMP
        if made_from.exists() and made_from.read_text() == stamp:
            return python
        shutil.rmtree(self.environment, ignore_errors=True)
        run([interpreter, "-m", "venv", str(self.environment)])
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
        install += ["--disable-pip-version-check"]
        run([*install, "--require-hashes", "--requirement", str(constraints)])
        run([*install, "--no-build-isolation", "--editable", str(ROOT)])
        if self.oldest:
            oldest = self.environment / "oldest.txt"
            oldest.write_text("\n".join(self.oldest_releases))
            run([*install, "--require-hashes", "--requirement", str(oldest)])
        elif npm_lock.exists():
            self.prepare_npm()
        made_from.write_text(stamp)
        return python

    def prepare_npm(self) -> None:
        """Have npm install its packages; say so where that is not possible."""
        place = self.environment / "npm"
        place.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(self.directory / name, place)
        try:
            run(["npm", "ci", "--prefix", str(place), *NPM_OPTIONS])
        except (UnavailableError, FileNotFoundError) as error:
            shutil.rmtree(place)
            print(f"{self.name}: tests with JavaScript are skipped: {error}", flush=True)

    def pin(self) -> None:
        """Write its constraints: the newest versions that its requirements allow.

        Raises:
            pin.PinError: pip could not resolve them.
            UnavailableError: there is no Python of that version.
        """
        needed = [*self.requirements, *ALWAYS]
        only = CLIENTS_NEED if self.clients_only else None
        source = SOURCE.findall(self._text)
        versions, found = pin.lock(
            needed, python=self.python, pip=self.interpreter(), only=only, source=source
        )
        what = WHAT.format(name=self.name)
        text = pin.render(versions, found, {}, what, pythons=[self.python], source=source)
        (self.directory / "constraints.txt").write_text(text, encoding="utf-8")
        print(f"{self.name}: {len(versions)} packages")


def run(command: Sequence[str]) -> None:
    """Run a step of a set-up.

    Raises:
        UnavailableError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
        raise UnavailableError((errors or done.stderr.splitlines() or ["no reason given"])[-1])


def frameworks() -> list[str]:
    """List the names of those that have tests."""
    return sorted(path.parent.name for path in TESTS.glob("*/requirements.txt"))


def main(argv: Sequence[str] | None = None) -> int:
    """Test the chosen ones; 1 if a test failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="FRAMEWORK", help="all, if none is named")
    parser.add_argument("--pin", action="store_true", help="write its constraints.txt anew")
    options, for_pytest = parser.parse_known_args(argv)
    if unknown := sorted(set(options.names) - set(frameworks())):
        parser.error(f"there is no {unknown[0]}; there are {', '.join(frameworks())}")
    failed: list[str] = []
    chosen = [Framework(name) for name in options.names or frameworks()]
    if not options.pin:
        chosen += [Framework(each.name, oldest=True) for each in chosen if each.oldest_releases]
    for framework in chosen:
        name = framework.environment.name
        if options.pin:
            framework.pin()
            continue
        try:
            python = framework.prepare()
        except UnavailableError as error:
            print(f"{name}: skipped: {error}", flush=True)
            continue
        print(f"{name}:", flush=True)
        command = [str(python), "-m", "pytest", "-c", str(TESTS / "pytest.ini")]
        command += ["--rootdir", str(ROOT), "--confcutdir", str(TESTS), *for_pytest]
        command += [str(framework.directory)]
        environ = dict(os.environ)
        if framework.clients_only:
            environ["NSM_SUPERVISOR"] = str(Path(sys.executable).parent / "nsm-supervisor")
        if subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
