"""tools/setup.sh and tools/bootstrap.py: which Python, which packages, when again."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"


def program(directory: Path, name: str, script: str) -> Path:
    """An executable shell script called `name`."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory with spaces in its name that has our setup.sh and a bootstrap that only tells."""
    tools = tmp_path / "a clone" / "tools"
    tools.mkdir(parents=True)
    shutil.copy(TOOLS / "setup.sh", tools)
    (tools / "bootstrap.py").write_text("import sys; print(sys.argv[1:], sys.flags.isolated)\n")
    return tools.parent


def setup(clone: Path, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run setup.sh with only `path` (and what a shell needs) on PATH."""
    return subprocess.run(
        ["/bin/sh", str(clone / "tools/setup.sh"), "--bench"],
        env={"PATH": f"{path}:{path}/base", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH directory with `dirname` and nothing else."""
    directory = tmp_path / "bin"
    (directory / "base").mkdir(parents=True)
    dirname = shutil.which("dirname")
    assert dirname is not None
    (directory / "base/dirname").symlink_to(dirname)
    return directory


def test_a_shim_that_does_not_work_is_passed_over(clone: Path, path: Path, tmp_path: Path) -> None:
    program(path, "python3", "echo 'pyenv: no version is set' >&2; exit 127")
    chosen = tmp_path / "chosen"
    program(path, "python3.12", f'touch "{chosen}"; exec "{sys.executable}" "$@"')
    done = setup(clone, path)
    assert done.stderr == ""
    assert done.stdout == "['--bench'] 1\n"
    # A real /usr/bin/python3 may come first; either way the shim was not the end of it.
    assert chosen.exists() or Path("/usr/bin/python3").exists()


def test_python_variable_that_does_not_work_is_an_error(clone: Path, path: Path) -> None:
    old = program(path, "old", "exit 1")  # what the version probe answers for 3.9
    done = setup(clone, path, PYTHON=str(old))
    assert done.returncode == 1
    assert "3.11 or newer" in done.stderr
    assert str(old) in done.stderr


@pytest.fixture
def bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", TOOLS / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    vars(module)["SSH_PROGRAMS"] = {}  # whole paths, which PATH does not change
    return module


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "sudo apt-get install -y -qq --no-install-recommends bubblewrap"),
        ("dnf", "sudo dnf install -y -q bubblewrap"),
        ("pacman", "sudo pacman -Sy --noconfirm --needed bubblewrap"),
        ("zypper", "sudo zypper -n -q install bubblewrap"),
        ("apk", "sudo apk add -q bubblewrap"),
    ],
)
def test_names_the_command_when_it_may_not_install(
    bootstrap: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch, manager: str, command: str
) -> None:
    program(path, manager, "exit 9")
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(bootstrap, "root_prefix", lambda: None)
    with pytest.raises(bootstrap.SetupError, match="bubblewrap is missing") as caught:
        bootstrap.ensure_bubblewrap()
    assert str(caught.value).endswith(command)


@pytest.fixture
def debian(bootstrap: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with apt-get, which writes down what it is asked for, and a right to use it."""
    log = path / "log"
    program(path, "apt-get", f'echo "$@" >> "{log}"; [ ! -e "{path}/broken" ]')
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(bootstrap, "root_prefix", list)
    monkeypatch.setattr(bootstrap, "VENV", path)
    return log


def test_installs_what_tests_lack_at_once(bootstrap: ModuleType, path: Path, debian: Path) -> None:
    for name in ("jq", "tree"):
        program(path, name, "exit 9")
    bootstrap.ensure_test_packages()
    assert debian.read_text().splitlines() == [
        "update -qq",
        "install -y -qq --no-install-recommends nix-bin file bc gawk",
    ]
    assert bootstrap.not_installed() == []


def test_packages_of_tests_that_cannot_be_installed_are_tried_once(
    bootstrap: ModuleType, path: Path, debian: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path / "broken").touch()
    bootstrap.ensure_test_packages()
    assert "could not install nix-bin, jq, tree, file, bc, gawk;" in capsys.readouterr().err
    assert "nix-bin" in bootstrap.not_installed()
    debian.unlink()
    bootstrap.ensure_test_packages()
    assert not debian.exists()


def stamps(bootstrap: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """(base, project) of the stamp that a clone at `root` asks for."""
    monkeypatch.setattr(bootstrap, "ROOT", root)
    stamp = bootstrap.wanted_stamp()
    return stamp.base, stamp.project


def test_changes_that_make_the_environment_again(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = TOOLS.parent
    copy = tmp_path / "one"
    (copy / "clients/nsm").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "clients/nsm/_version.py"):
        shutil.copy(root / name, copy / name)
    base, project = stamps(bootstrap, copy, monkeypatch)

    with (copy / "pyproject.toml").open("a") as file:
        file.write("\n[tool.unrelated]\nline-length = 7\n")
    assert stamps(bootstrap, copy, monkeypatch) == (base, project)

    (copy / "clients/nsm/_version.py").write_text('__version__ = "9.9.9"\n')
    changed = stamps(bootstrap, copy, monkeypatch)
    assert changed[0] == base
    assert changed[1] != project

    with (copy / "constraints.txt").open("a") as file:
        file.write("# another pin\n")
    assert stamps(bootstrap, copy, monkeypatch)[0] != base

    # A virtual environment holds absolute paths: a moved clone needs a new one.
    moved = copy.rename(tmp_path / "two")
    assert stamps(bootstrap, moved, monkeypatch)[1] == changed[1]
    assert stamps(bootstrap, moved, monkeypatch)[0] != base


def test_pins_name_no_index() -> None:
    root = TOOLS.parent
    for name in ("constraints.txt", "benchmarks/constraints.txt", "docs/constraints.txt"):
        text = (root / name).read_text()
        assert "://" not in text, name
        assert "index" not in text, name
        assert all(
            line.startswith(("#", "--only-binary", "    --hash=sha256:")) or "==" in line
            for line in text.splitlines()
        ), name
