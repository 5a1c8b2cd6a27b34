"""Doctor: the needs of nsm on this host, whether they are met, and how to meet them.

This module has the table of all checks, and the checks of what nsm needs to start anything. Each
result is data, from which the two output formats and the exit code are made.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence

import trio

from nsm import paths
from nsm.checks import HostCheck, fail, ok, render_json, render_text, rows, warn
from nsm.jail import landlock
from nsm.wire.errors import NixUnavailableError, NsmError
from nsmd.doctor.clients import check_clients
from nsmd.doctor.configured import check_devices, check_secrets
from nsmd.doctor.supervisor import check_bridge, check_http, check_places, check_upstream
from nsmd.doctor.system import check_kernel, check_landlock, check_room, check_service, this_host
from nsmd.doctor.trials import (
    check_copies,
    check_environment,
    check_filter,
    check_forking,
    check_jails,
    check_limits,
    check_lockdown,
    check_preloading,
    fix_of,
    try_all,
    try_limits,
)
from nsmd.environments.devices.equipment import DeviceFinder
from nsmd.environments.devices.nodes import device_host
from nsmd.environments.host_presets import find_environments
from nsmd.environments.nix.program import RECOMMENDED_VERSION, Nix, find_nix, why_no_store
from nsmd.host.listeners import PlaceError, check_way
from nsmd.host.package_manager import install_command
from nsmd.host.paths import trusted_owners
from nsmd.jail import BwrapLauncher
from nsmd.jail.bubblewrap import missing_bwrap, probe_bwrap
from nsmd.jail.host import open_sockets
from nsmd.jail.user import JailUser
from nsmd.model.settings import Settings
from nsmd.packages.images.layers import ZSTD

SAFE_BWRAP = (0, 12)
"""Older ones follow a symlink at a mount point out of the jail (CVE-2026-87766)."""


def report(
    settings: Settings, search_path: str, *, mistakes: Sequence[str] = (), as_json: bool
) -> int:
    """Check everything and print it, the mistakes in `config.toml` first. Returns the exit code: 1
    if something needed is missing.
    """
    checks = rows(("configuration", check_configuration(mistakes)))
    checks += examine(settings, search_path)
    sys.stdout.write(render_json(checks) if as_json else render_text(checks, _columns()))
    return 1 if any(check.status == "fail" for check in checks) else 0


def examine(settings: Settings, search_path: str) -> list[HostCheck]:
    """Make all checks; this takes about as long as three jails."""
    launcher = BwrapLauncher.for_host(search_path, settings.defaults.jail_uid)
    found = find_environments(settings, search_path, unreadable=launcher.user.why_unreadable)
    devices = device_host(launcher.user)
    environments = [*map(DeviceFinder(devices).equip, found)]
    usable = [environment for environment in environments if environment.problem is None]
    trials = try_all(launcher, usable)
    facts = next((trial.facts for trial in trials if trial.facts is not None), None)
    working = [trial.environment for trial in trials if trial.facts is not None]
    machine, has_table = platform.machine(), launcher.system_calls is not None
    nix, host = find_nix(search_path, os.environ, paths.home()), this_host(search_path)
    return [
        *rows(
            ("bubblewrap", check_bubblewrap(launcher.bwrap_path)),
            ("jails", check_jails(trials)),
            ("lock-down", check_lockdown(facts) if facts else None),
            ("system calls", check_filter(facts, machine, has_table) if facts else None),
            ("templates", check_forking(launcher, settings, working)),
            ("preload", check_preloading(launcher, settings, working)),
            ("copy-on-write", check_copies(launcher, settings, working)),
            ("jail user", check_user(launcher.user) if os.geteuid() == 0 else None),
            ("network", check_network(settings, open_sockets())),
            ("secrets", check_secrets(settings, search_path)),
        ),
        *check_limits(trio.run(try_limits, settings, os.environ), platform.release()),
        *rows(
            ("environment", [check_environment(each, trials) for each in environments]),
            ("gpu", check_devices(settings, devices)),
            ("nix", check_nix(nix)),
            ("images", check_images(search_path)),
            ("runtime directory", check_directory(safe_runtime_dir)),
            ("state directory", check_directory(_ensure_state_dir)),
        ),
        *check_kernel(host, jails_work=bool(working)),
        *rows(("landlock", check_landlock(landlock.version()))),
        *check_service(host),
        *check_places(host),
        *rows(("upstream proxy", check_upstream(host, settings))),
        *check_room(host, settings),
        *check_bridge(host, settings),
        *check_http(host, settings),
        *check_clients(host),
    ]


def check_configuration(mistakes: Sequence[str]) -> HostCheck | None:
    """Report the mistakes in `config.toml`, if there are any: no supervisor starts with them."""
    if not mistakes:
        return None
    return fail(
        "\n".join(mistakes),
        "Correct it; `nsm config check` looks again. What follows holds for the defaults.",
    )


def check_bubblewrap(path: str | None) -> HostCheck:
    """Check whether there is a bwrap that can do what jails need."""
    if path is None:
        return fail(missing_bwrap().message, fix_of(missing_bwrap()))
    try:
        program = probe_bwrap(path)
    except NsmError as error:
        return fail(error.message, fix_of(error))
    detail = f"{program.version}, {path}"
    if program.missing:
        return fail(
            f"{detail}: lacks {', '.join(program.missing)}", "Install bubblewrap 0.8 or newer."
        )
    numbers = tuple(int(number) for number in re.findall(r"\d+", program.version)[:3])
    if numbers < SAFE_BWRAP:
        return warn(
            f"{detail}: older than 0.12, so it may lack the fix for CVE-2026-87766. That does not "
            "affect nsm, which mounts nothing where a jail can write",
            "Upgrade when your distribution has it.",
        )
    return ok(detail)


def check_network(settings: Settings, open_sockets: str | None) -> HostCheck | None:
    """Check the networks of the environments that have one."""
    rules = {name: entry.network_rule for name, entry in settings.environments.items()}
    full = sorted(name for name, rule in rules.items() if rule.mode == "full")
    listed = sorted(name for name, rule in rules.items() if rule.mode == "allow")
    if full and open_sockets is not None:
        return warn(
            f"{', '.join(full)} may use the host's, and {open_sockets}",
            'Use a list of hosts, which may be ["*"], in config.toml, or a newer kernel.',
        )
    words = [f"{', '.join(full)} may use the host's"] if full else []
    words += [f"{', '.join(listed)} may reach a list of hosts"] if listed else []
    return ok("; ".join(words)) if words else None


def check_user(user: JailUser) -> HostCheck:
    """Check the user of jails, if the supervisor is root."""
    if user.has_mounts:
        return ok(f"{user.uid}, since the supervisor is root")
    return warn(
        f"{user.uid}, since the supervisor is root; it cannot enter closed directories such as "
        "/root, and nsm cannot make a mount namespace to get around that",
        "Run nsm as an ordinary user, or keep projects where everyone may go; in a container, "
        "--cap-add SYS_ADMIN helps too.",
    )


def check_nix(found: Nix | NixUnavailableError) -> HostCheck:
    """Check whether environments can be built with Nix, which nsm does not need otherwise."""
    if isinstance(found, NixUnavailableError):
        refused: list[str] = found.data["refused"]
        if refused:
            return warn("; ".join(refused), found.hint)
        return ok("not installed; only environments from a flake need it")
    detail = f"{found.version_text}, {found.program}"
    if why := why_no_store(found):
        return warn(
            f"{detail}: its store cannot be used: {why}",
            "Start its daemon (`sudo systemctl start nix-daemon`), or make its store writable.",
        )
    if found.version < RECOMMENDED_VERSION:
        wanted = ".".join(map(str, RECOMMENDED_VERSION))
        return warn(
            f"{detail}: nixpkgs asks for {wanted} or newer",
            "Upgrade it, if building an environment fails.",
        )
    return ok(f"{detail}; its store can be used")


def check_images(search_path: str) -> HostCheck:
    """Say what container images need that is not here. nsm needs none of it otherwise."""
    skopeo = shutil.which("skopeo", path=search_path)
    missing = [] if skopeo else [f"from registries need skopeo: {install_command('skopeo')}"]
    if not os.access(ZSTD, os.X_OK):
        missing.append(f"with layers of zstd need {ZSTD}: {install_command('zstd')}")
    return ok("; ".join(missing) or f"from registries with {skopeo}, also with layers of zstd")


def check_directory(ensure: Callable[[], str]) -> HostCheck:
    """Check whether a directory of ours exists or can be made, and is safe."""
    try:
        return ok(ensure())
    except (OSError, PlaceError) as error:
        return fail(str(error), "See the message.")


def safe_runtime_dir() -> str:
    """Check the runtime directory as a supervisor does at its start."""
    path = paths.ensure_runtime_dir()
    check_way(os.path.dirname(paths.socket_path()), trusted_owners())
    return path


def _columns() -> int | None:
    """Columns of the terminal on standard output; None if it is none."""
    try:
        return os.get_terminal_size().columns or 80
    except OSError:
        return None


def _ensure_state_dir() -> str:
    path = paths.state_dir()
    paths.ensure_private_dir(path)
    return path
