"""`--check`: what a box needs, whether it is there, and what to do.

Each row is found out by itself, so that all that is missing is told at once. At the end the very
box that was asked for is tried with a command that does nothing; nothing of the host is changed.
"""

from __future__ import annotations

import os
import platform
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nsm import paths
from nsm.checks import HostCheck, fail, ok, render_text, rows, warn
from nsm.dataclass import replace
from nsm.jail import landlock
from nsmbox.consent import screen
from nsmbox.host import bridge_programs, lookup, nix_host, program_links
from nsmbox.model.plan import BoxError, Plan
from nsmbox.planning import planning
from nsmbox.protection import secrets
from nsmbox.start import launch, macos
from nsmbox.start.supervisor import CERTIFICATES

if TYPE_CHECKING:
    from nsmbox.host.facts import BoxRequest, Facts
    from nsmbox.model.plan import BoxLimits

TRIAL_TIMEOUT_S = 30.0
"""Time limit for one box that does nothing: it takes 20 ms, more on a slow disk."""

CONNECT_TIMEOUT_S = 2.0


def check(
    request: BoxRequest,
    variables: Mapping[str, str],
    *,
    program: str,
    mistake: BoxError | None = None,
) -> int:
    """Look at everything and print it.

    Returns:
        1 if the box could not start, else 0.
    """
    checks = examine(request, variables, program=program, mistake=mistake)
    sys.stdout.write(render_text([_visible(check) for check in checks]))
    return 1 if any(check.status == "fail" for check in checks) else 0


def examine(
    request: BoxRequest,
    variables: Mapping[str, str],
    *,
    program: str,
    mistake: BoxError | None = None,
) -> list[HostCheck]:
    """The rows."""
    directory, place = check_directory(variables)
    facts, command = check_command(request, variables, directory)
    first = rows(
        ("configuration", _failed(mistake) if mistake else None),
        ("user", check_user(os.geteuid(), request, program)),
    )
    of_command = rows(
        ("directory", place),
        (request.profile.program or "command", command),
        ("variables", check_variables(request, variables)),
        ("git identity", check_git(facts)),
    )
    certificates = check_certificates(request, variables, CERTIFICATES)
    if platform.system() == "Darwin":
        return [
            *first,
            *rows(("sandbox-exec", check_seatbelt(macos.PROGRAM))),
            *of_command,
            *rows(("certificates", certificates), ("programs", check_programs(request, program))),
        ]
    uid = os.geteuid()
    bwrap, jail = check_bwrap(variables.get("PATH", ""), directory)
    trusted = facts.nix.trusted if facts and facts.nix else ""
    return [
        *first,
        *rows(
            ("bwrap", jail),
            ("user namespaces", check_namespaces(bwrap, uid)),
            ("system calls", check_system_calls(platform.machine())),
            ("nix daemon", check_nix(variables, trusted)),
        ),
        *of_command,
        *rows(
            ("DNS", check_names(request, "/etc/resolv.conf")),
            ("certificates", certificates),
            ("socket", check_socket(variables, needed=request.network.mode == "allow")),
            ("limits", check_limits(request.limits, variables)),
            ("programs", check_programs(request, program)),
            ("abstract sockets", check_abstract_sockets(request, landlock.version())),
            ("box", check_trial(request, facts, bwrap, uid)),
        ),
    ]


def check_user(uid: int, request: BoxRequest, program: str) -> HostCheck:
    """Root has no boxes."""
    if uid != 0:
        return ok(f"user {uid}, not root")
    why = request.profile.root or "a box of root keeps root's rights on the host"
    return fail(f"root: {why}", f"Run it as an ordinary user: `runuser -u USER -- {program} ...`.")


def check_bwrap(search_path: str, directory: str) -> tuple[str | None, HostCheck]:
    """The bwrap that makes boxes, and its path."""
    try:
        path = lookup.find_bwrap(search_path, *filter(None, (directory,)))
    except BoxError as error:
        return None, _failed(error)
    version, options = _run([path, "--version"]), _run([path, "--help"])
    for told in (version, options):
        if told.returncode:
            said = told.stderr.strip() or f"exit code {told.returncode}"
            return None, fail(f"{path}: {said}", "Reinstall bubblewrap.")
    detail = f"{version.stdout.removeprefix('bubblewrap').strip()}, {path}"
    if "--disable-userns" not in options.stdout:
        return path, fail(f"{detail}: lacks --disable-userns", "Install bubblewrap 0.8 or newer.")
    return path, ok(detail)


def check_seatbelt(program: str) -> HostCheck:
    """Check by a trial whether boxes on macOS can be made."""
    tried = _run([program, "-p", "(version 1)(allow default)", "/usr/bin/true"])
    if tried.returncode == 0:
        return ok(f"{program} works; there are no sessions of nsm")
    said = tried.stderr.strip() or f"exit code {tried.returncode}"
    return fail(
        f"{program}: {said}",
        "It belongs to macOS; inside another sandbox it cannot be used: start it outside.",
    )


def check_namespaces(bwrap: str | None, uid: int) -> HostCheck:
    """Check by a trial whether the kernel lets this user have namespaces."""
    if bwrap is None or uid == 0:
        why = "there is no bwrap to try them with" if bwrap is None else "root is not to try"
        return warn(f"not tried: {why}")
    options = ("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent")
    tried = _run([bwrap, *options, "--ro-bind", "/", "/", "--proc", "/proc", bwrap, "--version"])
    if tried.returncode == 0:
        return ok("allowed")
    return _failed(launch.explained(tried.stderr, bwrap))


def check_system_calls(machine: str) -> HostCheck:
    """Check whether there is a filter for this kind of machine."""
    from nsm.jail.seccomp import filter_program  # noqa: PLC0415  # only here

    if filter_program(machine) is not None:
        return ok("filtered")
    return warn(f"not filtered: there is no table for {machine}; a box can type into its terminal")


def check_nix(variables: Mapping[str, str], trusted: str = "") -> HostCheck:
    """Check whether the Nix daemon can be reached, where there is Nix."""
    store = variables.get(nix_host.STORE_VARIABLE) or nix_host.STORE
    if not os.path.isdir(store):
        return ok(f"no {store} here, none needed")
    path = os.path.join(os.path.dirname(store), "var/nix/daemon-socket/socket")
    if problem := _why_unreachable(path):
        return warn(
            f"{path}: {problem}; programs of the store run, `nix shell` does not",
            "Start it: sudo systemctl start nix-daemon.socket",
        )
    if trusted:
        return warn(
            f"{path}: it trusts you, and code in a box can become root through it",
            f"Take {trusted} out of trusted-users in nix.conf, and restart the daemon.",
        )
    return ok(path)


def check_directory(variables: Mapping[str, str]) -> tuple[str, HostCheck]:
    """The working directory, and whether a box may have it; empty where it may not."""
    try:
        known = secrets.look(paths.home(), variables, os.geteuid())
        directory = secrets.working_directory(known)
    except BoxError as error:
        return "", _failed(error)
    except OSError as error:
        return "", fail(str(error), "Set HOME.")
    return directory, ok(directory)


def check_command(
    request: BoxRequest, variables: Mapping[str, str], directory: str
) -> tuple[Facts | None, HostCheck | None]:
    """Find the command by its name; return all facts that were looked up."""
    name = request.profile.program or "command"
    if not directory:
        return None, warn("not looked for without a directory")
    if not (request.profile.program or request.command):
        request = replace(request, command=("sh",))
    try:
        facts = lookup.look(request, variables)
    except BoxError as error:
        return None, _failed(error)
    except OSError as error:
        return None, fail(str(error))
    if name == "command" and request.command == ("sh",):
        return facts, None
    program = facts.command[0]
    real = next((t.path for t in facts.tools if t.name == os.path.basename(program)), program)
    return facts, ok(real)


def check_variables(request: BoxRequest, variables: Mapping[str, str]) -> HostCheck | None:
    """Check whether variables that were asked for are set."""
    if not request.extra:
        return None
    if missing := [name for name in request.extra if name not in variables]:
        return warn(
            f"not set, so that the box does not have them: {', '.join(missing)}",
            "Set and export them, or take them out of CLAUDEBOX_EXTRA_ENV.",
        )
    return ok(f"passed too: {', '.join(request.extra)}")


def check_git(facts: Facts | None) -> HostCheck | None:
    """Check under whose name commits are made."""
    if facts is None:
        return None
    who = facts.git.identity
    if who.known:
        return ok(f"{who.name} <{who.email}>")
    detail = f"not set: commits are of {who.name} <{who.email}>, if the repository has none either"
    if who.problem:
        detail = f"{detail}; git's configuration cannot be read: {who.problem}"
    return warn(
        detail, "git config --global user.name NAME; git config --global user.email ADDRESS"
    )


def check_names(request: BoxRequest, path: str) -> HostCheck:
    """Check whether names of hosts can be resolved: the configuration is read, and nobody is
    asked."""
    if request.network.mode != "host":
        of_proxy = request.network.mode == "allow"
        detail = "names are the proxy's business" if of_proxy else "not needed: no network"
        return ok(detail)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError as error:
        return warn(
            f"{path}: {error.strerror}; only names of /etc/hosts are found",
            "A nameserver is set by a line `nameserver ADDRESS` in it.",
        )
    servers = [line[1] for line in lines if line[:1] == ["nameserver"] and len(line) > 1]
    if not servers:  # resolv.conf(5): then one on this machine is asked
        return ok(f"{path} names no server: this machine's own")
    return ok(f"{', '.join(servers)} ({os.path.realpath(path)})")


def check_certificates(
    request: BoxRequest, variables: Mapping[str, str], usual: Sequence[str]
) -> HostCheck:
    """Check whether TLS finds certificates of authorities."""
    for variable in ("SSL_CERT_FILE", "NIX_SSL_CERT_FILE"):
        path = variables.get(variable, "")
        if path and variable in request.profile.variables and not _is_file(path):
            return warn(
                f"{variable} is {path}, which is not a file that can be read",
                f"Set {variable} to a file of certificates, or unset it.",
            )
        if path and _is_file(path):
            return ok(f"{path} ({variable})")
    for path in usual:
        if _is_file(path):
            return ok(path)
    return warn(
        "none in the usual places, so that TLS knows no authority",
        "Install them (`apt install ca-certificates`), or set SSL_CERT_FILE.",
    )


def check_socket(variables: Mapping[str, str], *, needed: bool) -> HostCheck:
    """Check whether the supervisor is there, or would be started.

    Args:
        needed: the box's network is a list, which only the supervisor serves.
    """
    bad = fail if needed else warn
    without = "the network has no way out" if needed else "the box has no sessions of nsm"
    try:
        path = paths.socket_path()
    except OSError as error:
        return bad(f"{error}; {without}")
    problem = _why_unreachable(path)
    if problem is None:
        return ok(f"a supervisor listens on {path}")
    if variables.get("NSM_AUTOSTART") == "0":
        return bad(
            f"{path}: {problem}; {without}",
            "Start a supervisor (`nsm-supervisor`), or unset NSM_AUTOSTART.",
        )
    return ok(f"{path}: a supervisor is started with the box")


def check_limits(limits: BoxLimits, variables: Mapping[str, str]) -> HostCheck:
    """Tell the limits of the box, and what enforces that of memory."""
    from nsm import Client  # noqa: PLC0415  # only here
    from nsm.wire.errors import NsmError  # noqa: PLC0415

    told = ", ".join(screen.limits(limits, all_of_them=True))
    try:
        with Client(host="", autostart=False) as client:
            by = client.status().limits
    except (NsmError, OSError):
        if variables.get("NSM_AUTOSTART") != "0":
            return ok(
                f"{told}; the supervisor that is started with the box enforces the limit of memory"
            )
        return warn(
            f"{told}; memory for each process alone, since no supervisor answers",
            "Start a supervisor (`nsm-supervisor`), or unset NSM_AUTOSTART.",
        )
    why = f" ({by.why})" if by.why else ""
    return ok(f"{told}; memory by {by.memory}{why}")


def check_programs(request: BoxRequest, program: str) -> HostCheck | None:
    """Check whether the bridge has the programs that the box is to start."""
    if not request.programs:
        return None
    try:
        running = _why_unreachable(paths.socket_path()) is None
    except OSError:
        running = False
    return bridge_programs.row(request.programs, running=running, client=program)


def check_abstract_sockets(request: BoxRequest, version: int) -> HostCheck:
    """Check whether the host's abstract sockets (X11, D-Bus) are out of reach."""
    if request.network.mode != "host":
        return ok("out of reach: the box has its own network")
    if version >= landlock.SCOPES_SOCKETS:
        return ok("shut off by Landlock")
    return warn(
        "those of the host's programs can be reached: this kernel cannot shut them off",
        "Linux 6.12 can; or take the host's network away: --network off, or a list of hosts",
    )


def check_trial(request: BoxRequest, facts: Facts | None, bwrap: str | None, uid: int) -> HostCheck:
    """Check whether the very box starts."""
    if facts is None or bwrap is None or uid == 0:
        return fail("not tried, for what is missing above")
    plan = planning.plan(replace(request, network=replace(request.network, mode="none")), facts)
    if facts.links is not None:
        try:
            program_links.make(facts.links)  # kept for the next box
        except BoxError as without:
            return _failed(without)
    tried = _try(plan, bwrap)
    if tried.returncode == 0:
        return ok(f"{request.profile.name}: starts")
    return _failed(launch.explained(tried.stderr, bwrap))


def _try(plan: Plan, bwrap: str) -> subprocess.CompletedProcess[str]:
    """Have it run a shell that ends; what is made at launch is left out."""
    from nsm.jail.seccomp import filter_program  # noqa: PLC0415
    from nsmbox.planning import bwrap as arguments  # noqa: PLC0415

    files: list[int] = []

    def descriptor(data: bytes) -> int:
        files.append(launch.memory_file(data))
        return files[-1]

    try:
        lines = arguments.arguments(
            plan,
            descriptor,
            syscalls=filter_program(platform.machine()),
            sockets="",
            launched=False,
        )
        return _run([bwrap, *lines, "--", "/bin/sh", "-c", ":"], tuple(files))
    finally:
        for number in files:
            os.close(number)


def _run(
    command: Sequence[str], descriptors: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            cwd="/",
            env={},
            pass_fds=descriptors,
            timeout=TRIAL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(command, 1, stdout="", stderr=str(error))


def _why_unreachable(path: str) -> str | None:
    """Explain why nobody answers at a socket; None where somebody does."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(CONNECT_TIMEOUT_S)
            connection.connect(path)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.R_OK)
    except OSError:
        return False


def _failed(error: BoxError) -> HostCheck:
    return fail(error.message, error.hint)


def _visible(check: HostCheck) -> HostCheck:
    """Copy a check without anything that a terminal would act on: names of directories may be
    anything.
    """
    from nsm.cli.render.formats import visible, visible_lines  # noqa: PLC0415

    return replace(check, detail=visible_lines(check.detail), fix=visible(check.fix))
