"""Findings of the doctor, their words, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from fake_nix import FakeNix
from fake_nvml import NVMLError, fake_nvml
from gpu_world import GpuWorld, nvidia_world
from nsm.checks import HostCheck
from nsm.wire.errors import StartFailedError
from nsmd.doctor.configured import check_devices, why_unusable
from nsmd.doctor.report import (
    check_bubblewrap,
    check_directory,
    check_images,
    check_network,
    check_nix,
    safe_runtime_dir,
)
from nsmd.doctor.trials import (
    LimitsTrial,
    Trial,
    check_environment,
    check_filter,
    check_forking,
    check_jails,
    check_limits,
    check_lockdown,
)
from nsmd.environments.nix.program import find_nix
from nsmd.host.nvml import GpuReader, read_gpus
from nsmd.jail.arguments import JailContent
from nsmd.jail.launcher import JailPlan
from nsmd.model.settings import Defaults, EnvironmentSettings, Settings
from nsmd.model.values import Enforcement, Environment
from realjail import SYSTEM_PATH, environments, needs_bwrap, new_launcher

PYTHON = Environment(
    name="python", interpreter="python", description="Python 3.12.1", program="/opt/bin/python3"
)
GOOD: Mapping[str, object] = {
    "version": "Python 3.12.1",
    "works": True,
    "uid": 1000,
    "capabilities": 0,
    "no_new_privs": True,
    "filtered": True,
    "nested": False,
}


def trial(**changes: object) -> Trial:
    return Trial(environment=PYTHON, facts={**GOOD, **changes})


REFUSED = Trial(
    environment=PYTHON,
    facts=None,
    error=StartFailedError("user.max_user_namespaces is 0.", hint="sudo sysctl ..."),
)


def bwrap(tmp_path: Path, version: str, options: str) -> str:
    program = tmp_path / "bwrap"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "bubblewrap {version}" || echo "{options}"\n'
    )
    program.chmod(0o755)
    return str(program)


ALL_OPTIONS = "".join(
    f"    --{name} X\n"
    for name in (
        *("args", "as-pid-1", "cap-drop", "disable-userns", "file", "info-fd", "new-session"),
        *("perms", "remount-ro", "seccomp", "size", "unshare-cgroup-try"),
    )
)


@pytest.mark.parametrize(
    ("version", "options", "status", "said"),
    [
        ("0.12.0", ALL_OPTIONS, "ok", "0.12.0, "),
        ("0.13", ALL_OPTIONS, "ok", "0.13, "),
        ("1.0.1", ALL_OPTIONS, "ok", "1.0.1"),
        ("0.8.0", ALL_OPTIONS, "warn", "CVE-2026-87766"),
        ("0.11.1", ALL_OPTIONS, "warn", "CVE-2026-87766"),
        ("0.5.0", "    --args FD", "fail", "--disable-userns"),
    ],
)
def test_versions_of_bubblewrap(
    version: str, options: str, status: str, said: str, tmp_path: Path
) -> None:
    check = check_bubblewrap(bwrap(tmp_path, version, options))
    assert check.status == status
    assert said in check.detail
    assert (check.fix == "") is (status == "ok")


def test_no_jail_starts() -> None:
    check = check_jails([REFUSED])
    assert (check.status, check.detail) == ("fail", "user.max_user_namespaces is 0.")
    assert check.fix == "sudo sysctl ..."
    assert check_jails([]).status == "fail"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nested": True}, "user namespaces of its own"),
        ({"capabilities": 1}, "capabilities"),
        ({"no_new_privs": False}, "gain privileges"),
        ({"uid": 0}, "user 0"),
    ],
)
def test_code_with_power(change: Mapping[str, object], said: str) -> None:
    check = check_lockdown({**GOOD, **change})
    assert check.status == "fail"
    assert said in check.detail


@pytest.mark.parametrize(
    ("filtered", "has_table", "status"),
    [(True, True, "ok"), (False, True, "fail"), (False, False, "warn"), (True, False, "warn")],
)
def test_the_filter(filtered: bool, has_table: bool, status: str) -> None:
    check = check_filter({**GOOD, "filtered": filtered}, "riscv64", has_table)
    assert check.status == status
    assert ("riscv64" in check.detail) is not has_table


def test_environments() -> None:
    assert check_environment(PYTHON, [trial()]).status == "ok"
    broken = check_environment(PYTHON, [trial(works=False, version="libfoo.so not found")])
    assert broken.status == "warn"
    assert "libfoo.so" in broken.detail
    assert "[environments.python]" in broken.fix
    assert check_environment(PYTHON, [REFUSED]).status == "warn"
    silent = Trial(environment=PYTHON, facts=None)
    assert "said nothing" in check_environment(PYTHON, [silent]).detail
    missing = Environment(
        name="node",
        interpreter="node",
        problem="no node on PATH (/bin). To get one: sudo apt-get install nodejs",
    )
    check = check_environment(missing, [])
    assert (check.status, check.fix) == ("warn", "sudo apt-get install nodejs")
    assert check.detail == "no node on PATH (/bin)."


def test_a_runtime_directory_that_others_could_replace_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NSM_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "all" / "run"))
    (tmp_path / "all" / "run").mkdir(parents=True, mode=0o700)
    assert check_directory(safe_runtime_dir).status == "ok"
    (tmp_path / "all").chmod(0o777)
    check = check_directory(safe_runtime_dir)
    assert check.status == "fail"
    assert f"everybody may write to {tmp_path / 'all'}" in check.detail


def test_nix_is_optional_but_what_is_there_should_work(tmp_path: Path) -> None:
    home = str(tmp_path)
    none = check_nix(find_nix("", {}, home))
    assert (none.status, none.fix) == ("ok", "")
    fake = FakeNix(tmp_path / "bin")
    fake.builds("", ("print", "Store URL: local\n"))
    good = check_nix(find_nix(str(fake.folder), {}, home))
    assert (good.status, good.detail) == ("ok", f"2.18.1, {fake.program}; its store can be used")
    fake.builds("", ("fail", "cannot connect to socket"))
    stuck = check_nix(find_nix(str(fake.folder), {}, home))
    assert stuck.status == "warn"
    assert "cannot connect to socket" in stuck.detail
    old = check_nix(find_nix(str(FakeNix(tmp_path / "old", "nix (Nix) 2.3.1").folder), {}, home))
    assert old.status == "warn"
    assert "2.8 or newer" in old.detail
    usable = FakeNix(tmp_path / "usable", "nix (Nix) 2.8.0")
    usable.builds("", ("print", ""))
    assert "asks for 2.18" in check_nix(find_nix(str(usable.folder), {}, home)).detail


def test_programs_that_images_need_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "skopeo"
    monkeypatch.setattr("nsmd.doctor.report.ZSTD", str(program))
    assert "need skopeo: " in (lacking := check_images(str(tmp_path))).detail
    assert f"need {program}: " in lacking.detail
    program.touch(0o755)
    found = check_images(str(tmp_path))
    assert (lacking.status, found.status) == ("ok", "ok")
    assert found.detail == f"from registries with {program}, also with layers of zstd"


def doctor(
    tmp_path: Path, path: str = SYSTEM_PATH, settings: str = "Settings()"
) -> subprocess.CompletedProcess[str]:
    """Run it as the supervisor does: in a process that nothing else happens in."""
    program = (
        "import sys\nfrom nsmd.doctor import report\nfrom nsmd.model.settings import *\n"
        f"sys.exit(report.report({settings}, {path!r}, as_json=True))\n"
    )
    environment = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "PATH": path}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.jail
@needs_bwrap
def test_this_host_is_well(tmp_path: Path) -> None:
    told = doctor(tmp_path)
    report = json.loads(told.stdout)
    assert told.returncode == 0, told.stderr
    assert report["ok"] is True
    found = {check["name"]: check for check in report["checks"]}
    assert found["jails"]["status"] == found["lock-down"]["status"] == "ok"
    assert found["system calls"]["status"] == "ok"
    assert found["environment bash"]["status"] == "ok"
    assert found["runtime directory"]["detail"] == str(tmp_path / "nsm")
    assert ("jail user" in found) is (os.geteuid() == 0)


@pytest.mark.jail
@needs_bwrap
def test_an_interpreter_that_lacks_its_libraries_in_a_jail_is_found_out(tmp_path: Path) -> None:
    """The interpreter works on the host and says so; what it needs is outside its prefix."""
    prefix = Path(f"/tmp/nsm-test-{os.getpid()}-node")
    (prefix / "bin").mkdir(parents=True)
    try:
        library = tmp_path / "library"
        library.write_text("")
        node = prefix / "bin" / "node"
        node.write_text(
            f"#!/bin/sh\n. {library} || exit 3\n"
            f"""printf '%s\\n' '["{node}", "20.1.0"]'\n"""
        )
        node.chmod(0o755)
        prefix.chmod(0o755)
        settings = f"Settings(environments={{'node': EnvironmentSettings(interpreter='{node}')}})"
        report = json.loads(doctor(tmp_path, settings=settings).stdout)
    finally:
        for part in (prefix / "bin/node", prefix / "bin", prefix):
            part.rmdir() if part.is_dir() else part.unlink()
    found = {check["name"]: check for check in report["checks"]}
    assert found["environment node"]["status"] == "warn"
    assert "does not work in a jail" in found["environment node"]["detail"]
    assert report["ok"] is True


def test_without_bubblewrap_it_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("python3", "bash"):
        for folder in SYSTEM_PATH.split(":"):
            if (Path(folder) / name).exists():
                (tmp_path / "bin" / name).symlink_to(Path(folder) / name)
                break
    told = doctor(tmp_path, str(tmp_path / "bin"))
    report = json.loads(told.stdout)
    assert told.returncode == 1
    assert report["ok"] is False
    assert {check["name"] for check in report["checks"] if check["status"] == "fail"} == {
        "bubblewrap",
        "jails",
    }


def test_mistakes_in_the_configuration_are_among_what_it_finds(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[defaults]\nmemory = 3\n")
    told = subprocess.run(
        [sys.executable, "-m", "nsmd", "--doctor", "--config", str(tmp_path / "config.toml")],
        env={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert told.returncode == 1
    first, *_ = told.stdout.splitlines()
    assert first.startswith("fail  configuration")
    assert "config.toml: defaults.memory: unknown key" in first


@needs_bwrap
@pytest.mark.jail
def test_forking_is_tried() -> None:
    working = [environments()["bash"]]
    check = check_forking(new_launcher(), Settings(), working)
    assert check is not None
    assert check.status == "ok", check
    assert check_forking(new_launcher(), Settings(), []) is None
    off = Settings(defaults=Defaults(templates=False))
    check = check_forking(new_launcher(), off, working)
    assert check is not None
    assert (check.status, "config.toml" in check.detail) == ("ok", True)


@needs_bwrap
@pytest.mark.jail
def test_the_failed_step_of_a_fork_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = new_launcher()

    def closed(plan: JailPlan, content: JailContent) -> list[str]:
        return ["--disable-userns", *plan.arguments(content)]

    monkeypatch.setattr(launcher, "_arguments", closed)
    # A session's own jail has the option already; bwrap takes it twice.
    check = check_forking(launcher, Settings(), [environments()["bash"]])
    assert check is not None
    assert check.status == "warn"
    assert "clone" in check.detail
    assert "docs/explanation/security.md" in check.fix


def test_environments_with_a_network_are_told() -> None:
    assert check_network(Settings(), "abstract sockets are open") is None
    settings = Settings(
        environments={
            "python": EnvironmentSettings(network="full"),
            "bash": EnvironmentSettings(network=("x.org",)),
            "node": EnvironmentSettings(),
        }
    )
    check = check_network(settings, None)
    assert check is not None
    assert check.status == "ok"
    assert check.detail == "python may use the host's; bash may reach a list of hosts"
    check = check_network(settings, "abstract sockets are open")
    assert check is not None
    assert (check.status, check.detail) == (
        "warn",
        "python may use the host's, and abstract sockets are open",
    )


# Devices, images and limits that a valid configuration names, and this machine lacks.


def lines(world: GpuWorld, search_path: str = "", **settings: object) -> list[str]:
    entries = {"web": EnvironmentSettings(**settings), "python": EnvironmentSettings()}  # type: ignore[arg-type]
    return list(why_unusable(Settings(environments=entries), search_path, world.host))


def test_devices(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    assert lines(world, preset="python", devices=("nvidia:0", "nvidia:1")) == []
    (line,) = lines(world, preset="python", devices=("nvidia:0", "nvidia:7"))
    assert line == (
        "environments.web.devices: nvidia:0, nvidia:7: there is no /dev/nvidia7; "
        "there is nvidia:0, nvidia:1"
    )


def test_images(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path / "host")
    folder = tmp_path / "bin"
    folder.mkdir()
    (line,) = lines(world, str(folder), image="docker://python:3.13-slim")
    assert line.startswith("environments.web.image: to fetch it, nsm needs skopeo: ")
    (folder / "skopeo").touch(mode=0o755)
    assert lines(world, str(folder), image="docker://python:3.13-slim") == []
    place = tmp_path / "saved.tar"
    (line,) = lines(world, image=f"docker-archive:{place}:web")
    assert line == f"environments.web.image: {place} is missing or cannot be read"
    place.touch()
    assert lines(world, image=f"docker-archive:{place}:web") == []


# Rows about GPUs; the host and NVIDIA's library are made up.


GPU_ROW = {"number": 0, "processes": [(300, 1 << 30, 7)]}


def rows(world: GpuWorld, *devices: str, error: NVMLError | None = None) -> list[HostCheck]:
    settings = Settings(
        environments={
            "ml": EnvironmentSettings(preset="python", devices=devices),
            "plain": EnvironmentSettings(preset="python"),
        }
    )
    reader = GpuReader(partial(read_gpus, lambda: fake_nvml(GPU_ROW, init=error)))
    return list(check_devices(settings, world.host, reader))


def test_devices_and_libraries_of_a_gpu_are_told(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    world.write("/usr/bin/gcc", "").chmod(0o755)
    environment, use, compiler = rows(world, "nvidia:0")
    assert (environment.name, environment.status) == ("ml", "ok")
    assert environment.detail == (
        "nvidia:0: /dev/nvidia-uvm, /dev/nvidia-uvm-tools, /dev/nvidia0, /dev/nvidiactl; the "
        "driver's libraries are in /opt/nvidia/lib64"
    )
    assert use.detail == "/dev/nvidia0: NVIDIA Test 0, 1024 of 81920 MiB in use"
    assert compiler.detail == "/usr/bin/gcc, for `torch.compile`"


def test_missing_parts_of_a_gpu_are_told(tmp_path: Path) -> None:
    world = nvidia_world(tmp_path)
    _, use, compiler = rows(world, "nvidia", error=NVMLError(18))
    assert (use.status, "older module" in use.detail) == ("warn", True)
    assert "none in /usr/bin" in compiler.detail
    world.path("/dev/nvidia-uvm").unlink()
    (environment,) = rows(world, "nvidia")
    assert (environment.status, "no /dev/nvidia-uvm" in environment.detail) == ("warn", True)


def test_gpus_that_no_environment_has(tmp_path: Path) -> None:
    (row,) = rows(nvidia_world(tmp_path))
    assert (row.status, row.detail) == (
        "ok",
        "an NVIDIA GPU is here, and no environment has it (docs/how-to/images.md)",
    )
    assert rows(GpuWorld(tmp_path / "none")) == []


# Findings of the doctor about limits.


GROUPS = Enforcement(memory="cgroup", processes="cgroup", cpu="cgroup")
NONE = Enforcement(memory="watchdog", processes="rlimit", cpu="none", why="cgroup v2 is absent")


def limit_rows(seen: LimitsTrial, release: str = "6.1.0") -> dict[str, HostCheck]:
    return {check.name: check for check in check_limits(seen, release)}


def test_groups() -> None:
    found = limit_rows(LimitsTrial(enforcement=GROUPS, where="/sys/fs/cgroup/a"))
    assert [check.status for check in found.values()] == ["ok", "ok", "ok"]
    assert "below /sys/fs/cgroup/a, read back" in found["memory limit"].detail


def test_none() -> None:
    found = limit_rows(LimitsTrial(enforcement=NONE, fix="Boot otherwise."))
    assert [check.status for check in found.values()] == ["warn", "ok", "warn"]
    assert "cgroup v2 is absent. Instead, a watchdog" in found["memory limit"].detail
    assert found["memory limit"].fix == "Boot otherwise."
    assert found["processor share"].fix == "As for the memory limit."


def test_older_kernels_count_a_users_processes_together() -> None:
    assert limit_rows(LimitsTrial(enforcement=NONE), "5.10.0-1")["process limit"].status == "warn"
    assert limit_rows(LimitsTrial(enforcement=NONE), "5.14.0")["process limit"].status == "ok"


def test_a_controller_that_is_not_delegated() -> None:
    kept = Enforcement(memory="cgroup", processes="cgroup", cpu="none", why="not delegated: cpu")
    found = limit_rows(LimitsTrial(enforcement=kept, where="/x"))
    assert found["memory limit"].status == "ok"
    assert "Have the cpu controller delegated" in found["processor share"].fix
