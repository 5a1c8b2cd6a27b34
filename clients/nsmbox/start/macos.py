"""Boxes on macOS: a Seatbelt profile, what has to be made before it, and its start.

Not verified on a Mac. Apple documents no profiles: operations and filters come from profiles that
ship with macOS, and of public sandboxes. Their users report that full-screen programs need
`file-ioctl` on the terminal (anthropic-experimental/sandbox-runtime issue 419), and that the symbol
`TIOCSTI` stops the start on macOS 14.2 (openai/codex issue 45119), while Seatbelt refuses it anyway
(navikt/cplt pull request 380). Paths must have no symbolic links (`/private/tmp`).

Seatbelt has no mounts: a program sees the host's paths and is refused most of them. So what a plan
has at another place than the host is made in a directory of the box's own, with links in it, and
variables name that. Of rules that match, the last one counts, as with mounts the last one covers.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import tempfile
from typing import NoReturn

from nsm.dataclass import dataclass
from nsmbox.consent import readable
from nsmbox.model.plan import RUN_DIRECTORY, BoxError, Mount, Plan
from nsmbox.protection.secrets import within
from nsmbox.start import launch

PROGRAM = "/usr/bin/sandbox-exec"

_BASE = """\
(version 1)
(deny default)

; Programs and what they need of the system.
(allow process-exec)
(allow process-fork)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))
(allow sysctl-read)
; Which show the environment of every process of this user.
(deny sysctl-read (sysctl-name-prefix "kern.procargs"))
(allow ipc-posix-sem)
(allow file-read* file-map-executable
  (subpath "/System")
  (subpath "/bin")
  (subpath "/sbin")
  (subpath "/usr")
  (subpath "/opt/homebrew")
  (subpath "/Library/Apple")
  (subpath "/Library/Developer")
  (subpath "/Library/Frameworks")
  (subpath "/private/var/db/dyld")
  (subpath "/private/var/db/timezone")
  (subpath "/private/var/select"))
(allow file-read*
  (literal "/")
  (subpath "/Library/Preferences/Logging")
  (literal "/private/etc/group")
  (literal "/private/etc/hosts")
  (literal "/private/etc/localtime")
  (literal "/private/etc/passwd")
  (literal "/private/etc/protocols")
  (literal "/private/etc/resolv.conf")
  (literal "/private/etc/services")
  (literal "/private/etc/shells")
  (subpath "/private/etc/ssl"))
(allow file-read-metadata
  (literal "/dev")
  (literal "/etc")
  (literal "/private")
  (literal "/private/etc")
  (literal "/private/tmp")
  (literal "/private/var")
  (literal "/tmp")
  (literal "/var"))
(allow mach-lookup
  (global-name "com.apple.logd")
  (global-name "com.apple.system.logger")
  (global-name "com.apple.system.notification_center")
  (global-name "com.apple.system.opendirectoryd.libinfo")
  (global-name "com.apple.system.opendirectoryd.membership"))

; Devices, and terminals that are opened inside.
(allow file-read* file-write-data
  (literal "/dev/null")
  (literal "/dev/zero"))
(allow file-read*
  (literal "/dev/random")
  (literal "/dev/urandom")
  (subpath "/dev/fd"))
(allow pseudo-tty)
(allow file-read* file-write* file-ioctl
  (literal "/dev/ptmx")
  (literal "/dev/tty"))
(allow file-read* file-write* file-ioctl
  (require-all (regex #"^/dev/ttys[0-9]+$") (extension "com.apple.sandbox.pty")))
"""

_NETWORK = """\

; What the host reaches, but for its Unix sockets.
(allow system-socket)
(allow network-bind (local ip))
(allow network-inbound (local ip))
(allow network-outbound (remote ip))
(allow network-outbound (literal "/private/var/run/mDNSResponder"))
(allow mach-lookup
  (global-name "com.apple.SystemConfiguration.DNSConfiguration")
  (global-name "com.apple.SystemConfiguration.configd")
  (global-name "com.apple.dnssd.service")
  (global-name "com.apple.trustd")
  (global-name "com.apple.trustd.agent"))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Command and preparations that start a box on macOS.

    Attributes:
        directories: to be made first, in this order, with their permission bits; absolute.
        links: to be made then: their place, and what they say.
        files: to be made then: their place, content and permission bits.
    """

    profile: str
    command: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    directories: tuple[tuple[str, int], ...]
    links: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, bytes, int], ...]


def start_of(plan: Plan, own: str, *, terminals: tuple[str, ...] = ()) -> Start:
    """Make the start of a plan on macOS.

    Args:
        own: a directory of the box's own, absolute, all links followed.
    """
    if plan.network.mode == "allow":
        raise BoxError(
            "a network that is a list needs nsm's supervisor, which is for Linux alone",
            hint="Use `--network off` or `--network full`.",
            exit_code=2,
        )
    layout = _Layout(own)
    for mount in plan.mounts:
        layout.add(mount)
    profile = "".join(
        (
            _BASE,
            *(_terminal(path) for path in terminals),
            _NETWORK if plan.network.mode == "host" else "",
            "\n; What is the box's own.\n",
            _rule("allow", "file-read* file-write* file-map-executable", own),
            "\n; What is shown and hidden; of rules that match, the last one counts.\n",
            *layout.rules,
            *_ancestors((own, *layout.shown)),
        )
    )
    return Start(
        profile=profile,
        command=tuple(
            layout.moved(word) if place == 0 or within(word, RUN_DIRECTORY) else word
            for place, word in enumerate(plan.command)
        ),
        variables=tuple(
            (one.name, ":".join(map(layout.moved, one.value.split(":")))) for one in plan.variables
        ),
        directories=tuple(layout.directories.items()),
        links=tuple(layout.links.items()),
        files=tuple((path, data, mode) for path, (data, mode) in layout.files.items()),
    )


class _Layout:
    """Places of the plan's contents on a host without mounts, one mount after the other."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._places: dict[str, str] = {}  # in the plan, on the host
        self._changeable: list[str] = []
        self.rules: list[str] = []
        self.shown: list[str] = []
        self.directories: dict[str, int] = {own: 0o700}
        self.links: dict[str, str] = {}
        self.files: dict[str, tuple[bytes, int]] = {}

    def moved(self, path: str) -> str:
        """Host path of a path in the plan; any other text unchanged."""
        place: str = path
        while place.startswith("/") and place != "/":
            if place in self._places:
                return self._places[place] + path[len(place) :]
            place = os.path.dirname(place)
        return path

    def add(self, mount: Mount) -> None:
        target = mount.target
        if mount.stand_in or mount.kind == "link":  # a rule needs nothing to be there
            self.rules.append(_rule("deny", "file-write*", target))
            self._stay(target)
            return
        match mount.kind:
            case "tmpfs" if target != "/":
                self._places[target] = self._own + target
                self._make(self._own + target, mount.mode)
            case "dir" if within(target, RUN_DIRECTORY):
                self._places.setdefault(RUN_DIRECTORY, self._own + RUN_DIRECTORY)
                self._make(self.moved(target), mount.mode)
            case "bind" | "ro-bind":
                self._bind(mount)
            case "symlink" if self._is_own(target):
                self._link(target, self.moved(mount.source))
            case "file" | "ro-file" if self._is_own(target):
                place = self.moved(target)
                self._make(os.path.dirname(place))
                self.files[place] = (mount.data, mount.mode)
                if mount.kind == "ro-file":
                    self.rules.append(_rule("deny", "file-write*", place))
            case "mask":
                place = self.moved(target)
                rule = _rule("deny", "file-read* file-write* process-exec*", place)
                self.rules.append(rule)
                self._stay(place)
            case _:
                pass  # the system's own is there already

    def _bind(self, mount: Mount) -> None:
        source, target = mount.source, mount.target
        if self._is_own(target):
            self._link(target, source)
        self._places[target] = source
        self.shown.append(source)
        self.rules.append(_rule("allow", "file-read* file-map-executable", source))
        if mount.kind == "bind":
            self._changeable.append(source)
            self.rules.append(_rule("allow", "file-write*", source))
            return
        self.rules.append(_rule("deny", "file-write*", source))
        self._stay(source)

    def _stay(self, path: str) -> None:
        """Refuse to rename what lies above it: that would take it to where no rule names it."""
        for changeable in self._changeable:
            place: str = os.path.dirname(path)
            while within(place, changeable) and place != changeable:
                self.rules.append(f"(deny file-write-unlink (literal {_quoted(place)}))\n")
                place = os.path.dirname(place)

    def _is_own(self, target: str) -> bool:
        return within(self.moved(target), self._own)

    def _make(self, path: str, mode: int = 0o755) -> None:
        if path not in self.directories:
            if path != self._own:
                self._make(os.path.dirname(path))
            self.directories[path] = mode

    def _link(self, target: str, says: str) -> None:
        place = self.moved(target)
        self._make(os.path.dirname(place))
        self.links[place] = says


def _terminal(path: str) -> str:
    return (
        "\n; The caller's terminal.\n"
        f"(allow file-read* file-write* file-ioctl (literal {_quoted(path)}))\n"
    )


def _ancestors(paths: tuple[str, ...]) -> list[str]:
    """List the directories above the paths: resolving a path looks whether they exist, not into
    them."""
    above: set[str] = set()
    for path in paths:
        place: str = path
        while place != "/":
            place = os.path.dirname(place)
            above.add(place)
    literals = "".join(f"\n  (literal {_quoted(path)})" for path in sorted(above))
    return [f"\n(allow file-read-metadata{literals})\n"]


def _rule(decision: str, operations: str, path: str) -> str:
    return f"({decision} {operations} (subpath {_quoted(path)}))\n"


def _quoted(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise BoxError(
            f"{path!r} is not UTF-8, and a Seatbelt profile cannot name it",
            hint="Rename it.",
        ) from error
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


OWN = "/private/tmp/nsm-box"
"""Stand-in for the box's own directory, in what is printed."""


def become(plan: Plan) -> NoReturn:
    """Make what the box has of its own, and execute `sandbox-exec`.

    The directory is left to the system, which clears its temporary directories: the process that
    made it is the one that becomes the command.
    """
    for number in launch.open_descriptors():
        os.set_inheritable(number, False)
    # Python ignores these for itself.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    own = os.path.realpath(tempfile.mkdtemp(prefix="nsm-box-"))
    try:
        start = start_of(plan, own, terminals=_terminals())
        make(start)
        os.chdir(plan.start or plan.directory)
        arguments = [PROGRAM, "-p", start.profile, *start.command]
        os.execve(PROGRAM, arguments, dict(start.variables))  # noqa: S606
    except OSError as error:
        raise BoxError(f"{PROGRAM} cannot be executed: {error.strerror}") from error
    finally:  # reached where there is no box
        shutil.rmtree(own, ignore_errors=True)


def make(start: Start) -> None:
    """Make directories, files and links; nothing is replaced."""
    try:
        for path, mode in start.directories:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode)
        for path, data, mode in start.files:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(number, "wb") as file:
                file.write(data)
        for path, says in start.links:
            os.symlink(says, path)
    except OSError as error:
        raise BoxError(f"{error.filename} cannot be made: {error.strerror}") from error


def command(plan: Plan) -> str:
    """The whole, for bash; what is secret is the shell's own variable there, or masked."""
    start = start_of(plan, OWN, terminals=_terminals())
    secret = {one.name: one for one in plan.variables if one.secret}
    lines = [f"mkdir -p {shlex.quote(path)}" for path, _ in start.directories]
    lines += [
        f"base64 -d <<<{base64.b64encode(data).decode()} >{shlex.quote(path)}"
        for path, data, _ in start.files
    ]
    lines += [f"ln -s {shlex.quote(says)} {shlex.quote(path)}" for path, says in start.links]
    variables: list[str] = []
    for name, value in start.variables:
        if name in secret and secret[name].inherited:
            variables.append(f'{name}="${name}"')
        else:
            shown = readable.masked(name, value, secret=name in secret)
            variables.append(f"{name}={shlex.quote(shown)}")
    words = [
        f"cd {shlex.quote(plan.start or plan.directory)} && exec env -i",
        *variables,
        f"{PROGRAM} -p {shlex.quote(start.profile)}",
        " ".join(map(shlex.quote, start.command)),
    ]
    return "( " + "\n".join([*lines, " \\\n  ".join(words)]) + "\n)"


def _terminals() -> tuple[str, ...]:
    found: set[str] = set()
    for number in range(3):
        try:
            found.add(os.ttyname(number))
        except OSError:
            continue
    return tuple(sorted(found))
