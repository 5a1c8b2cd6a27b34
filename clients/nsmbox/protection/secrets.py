"""Paths of the host that no box shows, wherever it is started, and the mounts that mask them.

`look` examines the host once; the rest are pure functions of what it found. A secret is known by
its real path, all links followed, so that neither a link to it nor a directory that it really lies
in shows it.

nsm's own directories are among them. What lies there decides what runs on the host: programs of
the bridge, what boxes show, which of them people have agreed to. Links may lead to it, as people do
who keep their configuration in a repository, and a box may be started in that.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from nsm.dataclass import dataclass
from nsmbox.host import nix_host
from nsmbox.model.plan import BoxError, Mount

IN_HOME = (
    # Keys and passwords.
    *(".1password", ".age", ".agenix", ".authinfo", ".authinfo.gpg", ".dbus", ".gnupg"),
    *(".netrc", ".password-store", ".pki", ".ssh", ".vault-token"),
    # Logins of clouds, databases and hosts.
    *(".ansible", ".aws", ".azure", ".boto", ".docker", ".kaggle", ".kube", ".my.cnf", ".oci"),
    *(".pgpass", ".pulumi/credentials.json", ".s3cfg", ".terraform.d", ".terraformrc"),
    # Logins of registries.
    *(".cargo/credentials", ".cargo/credentials.toml", ".composer/auth.json"),
    *(".gem/credentials", ".git-credentials", ".gradle/gradle.properties"),
    *(".huggingface/token", ".m2/settings-security.xml", ".m2/settings.xml", ".npmrc"),
    *(".pypirc", ".rustup-credentials", ".yarnrc.yml"),
    # Agents.
    *(".claude", ".claude.json", ".codex"),
    # Wallets.
    *(".bitcoin", ".electrum", ".ethereum"),
    # Browsers, mail and screens.
    *(".mozilla", ".thunderbird", ".Xauthority", ".ICEauthority", "snap/chromium"),
    *("snap/firefox", "snap/thunderbird"),
)
"""Below HOME."""

IN_CONFIG = (
    # Keys and passwords.
    *("1Password", "Bitwarden", "Bitwarden CLI", "age", "agenix", "git/credentials"),
    *("keepassxc", "op", "sops"),
    # Logins.
    *("containers/auth.json", "doctl", "fly", "gcloud", "gh", "glab-cli", "hcloud"),
    *("helm/registry", "heroku", "hub", "kube", "rclone", "stripe", "tailscale"),
    # Browsers, messengers and sound.
    *("BraveSoftware", "Slack", "Signal", "chromium", "google-chrome", "google-chrome-beta"),
    *("google-chrome-unstable", "librewolf", "microsoft-edge", "opera", "pulse", "vivaldi"),
)
"""Below `XDG_CONFIG_HOME` (~/.config)."""

IN_DATA = (
    *("age", "atuin", "containers", "fish/fish_history", "gnupg", "keyrings", "kwalletd"),
    *("opencode/auth.json", "pass", "tailscale"),
)
"""Below `XDG_DATA_HOME` (~/.local/share)."""

IN_STATE = ("tailscale",)
"""Below `XDG_STATE_HOME` (~/.local/state)."""

IN_CACHE = ("chromium", "google-chrome", "mozilla", "BraveSoftware")
"""Below `XDG_CACHE_HOME` (~/.cache)."""

_BASES = {
    "XDG_CONFIG_HOME": (".config", IN_CONFIG),
    "XDG_DATA_HOME": (".local/share", IN_DATA),
    "XDG_STATE_HOME": (".local/state", IN_STATE),
    "XDG_CACHE_HOME": (".cache", IN_CACHE),
}

IN_FLATPAK = (
    *("com.brave.Browser", "com.google.Chrome", "org.chromium.Chromium"),
    *("org.mozilla.Thunderbird", "org.mozilla.firefox", "org.signal.Signal"),
)
"""Below ~/.var/app."""

OF_SYSTEM = (
    # Keys.
    *("/etc/agenix", "/etc/nix/netrc", "/etc/ssh", "/etc/wireguard", "/root", "/run/agenix"),
    *("/run/agenix.d", "/run/secrets", "/run/secrets.d"),
    # Ways to daemons.
    *("/run/avahi-daemon", "/run/containerd", "/run/cups", "/run/dbus", "/run/docker.sock"),
    *("/run/incus", "/run/libvirt", "/run/pcscd", "/run/podman", "/run/snapd.socket"),
    *("/run/systemd", "/run/tailscale", "/run/user", "/var/lib/docker", "/var/lib/tailscale"),
    *("/var/run/docker.sock",),
    # Screens.
    *("/tmp/.ICE-unix", "/tmp/.X11-unix"),  # noqa: S108 - names that are masked
)
"""Wherever the user is."""

NAMING_FILES = (
    *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AZURE_CONFIG_DIR", "CLAUDE_CONFIG_DIR", "CLOUDSDK_CONFIG", "CODEX_HOME"),
    *("DOCKER_CERT_PATH", "DOCKER_CONFIG", "GH_CONFIG_DIR", "GNUPGHOME"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "KRB5_KTNAME", "NETRC", "NPM_CONFIG_USERCONFIG"),
    *("NSM_SOCKET", "PASSWORD_STORE_DIR", "PGPASSFILE", "REGISTRY_AUTH_FILE"),
    *("SOPS_AGE_KEY_FILE", "SSH_AUTH_SOCK", "TF_CLI_CONFIG_FILE", "VAULT_TOKEN_FILE"),
    *("XAUTHORITY", "XDG_RUNTIME_DIR", "npm_config_userconfig"),
)
"""Variables that say where a program has its secrets, or the socket of one that has."""

_CLOSED = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/run")
"""No box begins in one or below."""

_SHARED = ("/", "/tmp", "/var", "/var/tmp", "/usr", "/nix", "/nix/store")  # noqa: S108 - refused
"""No box begins in one; in what lies below it may."""

MAX_DEFINITIONS = 4096
"""Largest number of the bridge's definitions whose links are followed."""

_MARKS = (".gnupg", ".ssh")
"""Directories that only homes have, or copies of homes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A path that exists on the host and that no box shows.

    Attributes:
        path: absolute, all links followed.
    """

    path: str
    name: str
    is_directory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Paths to hide on this host.

    Attributes:
        homes: real paths of the user's home directories: HOME's and the user database's.
        own: real paths of nsm's own places, which are among them.
    """

    homes: tuple[str, ...] = ()
    secrets: tuple[Secret, ...] = ()
    own: tuple[str, ...] = ()


def look(home: str, variables: Mapping[str, str], uid: int, directory: str | None = None) -> Known:
    """Find out what there is to hide.

    Args:
        variables: the caller's, some of which name files of secrets.
        uid: the user, whose entry in the user database counts beside HOME: a HOME that was set to
            something else must not open the real one.
        directory: where the box is to begin; the current directory if None.
    """
    names = [home] if home.startswith("/") else []
    with suppress(KeyError):  # a user of no name, as in containers
        names.append(pwd.getpwuid(uid).pw_dir)
    homes = tuple(dict.fromkeys(os.path.realpath(name) for name in names if name))
    kept = {os.path.realpath(os.path.join(each, ".claudebox")) for each in homes}
    found: dict[str, Secret] = {}
    places, own = set(own_directories(names, variables)), set[str]()
    for name in (*_candidates(names, variables), *_marked(directory), *places):
        try:
            mode = os.stat(name).st_mode
        except (OSError, ValueError):
            continue  # of most, and cheaper than its real path
        real = os.path.realpath(name)
        # A variable can name what is no secret of its own and cannot be done without.
        if real in _SHARED or any(within(each, real) for each in homes) or real in kept:
            continue
        found[real] = Secret(path=real, name=name, is_directory=stat.S_ISDIR(mode))
        if name in places:
            own.add(real)
    secrets = tuple(found[path] for path in sorted(found))
    return Known(homes=homes, secrets=secrets, own=tuple(sorted(own)))


def _candidates(homes: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    yield from OF_SYSTEM
    for home in homes:
        yield from (os.path.join(home, name) for name in IN_HOME)
        yield from (os.path.join(home, ".var/app", name) for name in IN_FLATPAK)
    names = dict(_BASES.values())
    for base, place in _base_directories(homes, variables):
        yield from (os.path.join(place, name) for name in names[base])
    for variable in NAMING_FILES:
        if (path := variables.get(variable, "")).startswith("/"):
            yield path
    for path in variables.get("KUBECONFIG", "").split(":"):
        if path.startswith("/"):
            yield path
    yield from _sockets(variables)


def _base_directories(
    homes: Sequence[str], variables: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the base directories of the XDG, each with its usual place below HOME."""
    for variable, (base, _) in _BASES.items():
        if (given := variables.get(variable, "")).startswith("/"):
            yield base, given
        yield from ((base, os.path.join(home, base)) for home in homes)


def own_directories(homes: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Directories of nsm's own and links to them, there or not, links not followed."""
    store = os.path.join(variables.get(nix_host.STORE_VARIABLE) or nix_host.STORE, "")
    for base, place in _base_directories(homes, variables):
        own = os.path.join(place, "nsm")
        yield own
        if base == ".config":
            # In the store nothing changes, and each generation has another path there.
            links = _links_to_own(own)
            yield from (p for p in links if not os.path.realpath(p).startswith(store))


def _links_to_own(directory: str) -> Iterator[str]:
    """Links in the directory of the configuration; all else there is within it."""
    tools = os.path.join(directory, "tools")
    for path in (os.path.join(directory, "config.toml"), tools):
        if os.path.islink(path):
            yield path
    try:
        with os.scandir(tools) as entries:
            for entry in islice(entries, MAX_DEFINITIONS):
                if entry.name.endswith(".md") and entry.is_symlink():
                    yield entry.path
    except OSError:
        return  # there is none


def leading_to(places: Iterable[str], directory: str) -> tuple[str, ...]:
    """Directories on the way from a directory to these places, sorted: one that could be renamed
    would let another one be put there.

    Args:
        places: real paths.
    """
    top = directory.rstrip("/")
    found: set[str] = set()
    for place in places:
        above = os.path.dirname(place)
        while above.startswith(f"{top}/"):
            found.add(above)
            above = os.path.dirname(above)
    return tuple(sorted(found))


def _marked(directory: str | None) -> Iterator[str]:
    """Yield secrets by names that only homes have, in a directory that is none: a copy of one, or
    somebody else's."""
    try:
        directory = os.getcwd() if directory is None else directory
    except OSError:
        return  # which `working_directory` says
    for name in _MARKS:
        path = os.path.join(directory, name)
        # By a link, a box could have the next one hide the system, or the directory itself.
        if not os.path.islink(path) or os.path.realpath(path).startswith(f"{directory}/"):
            yield path


def _sockets(variables: Mapping[str, str]) -> Iterator[str]:
    """Sockets that variables name in the spelling of their protocol."""
    for variable in ("DOCKER_HOST", "CONTAINER_HOST", "PODMAN_HOST"):
        scheme, _, path = variables.get(variable, "").partition("://")
        if scheme == "unix" and path.startswith("/"):
            yield path
    for address in variables.get("DBUS_SESSION_BUS_ADDRESS", "").split(";"):
        for field in address.removeprefix("unix:").split(","):
            if field.startswith("path=/"):
                yield field.removeprefix("path=")
    for variable in ("WAYLAND_DISPLAY", "PULSE_SERVER", "GPG_AGENT_INFO", "TMUX"):
        path = variables.get(variable, "").removeprefix("unix:")
        if path.startswith("/"):
            yield path.split(":")[0].split(",")[0]


def within(path: str, directory: str) -> bool:
    """Return whether a normalised absolute path is that directory or lies below it."""
    return directory == "/" or path == directory or path.startswith(directory + "/")


def holder(known: Known, path: str) -> Secret | None:
    """The secret that a real path is, or lies in."""
    return next((each for each in known.secrets if within(path, each.path)), None)


def why_refused(known: Known, directory: str) -> str | None:
    """Explain why a box must not be able to change a directory as a whole.

    Args:
        directory: absolute, all links followed.

    Returns:
        A clause that follows the directory's name; None where nothing speaks against it.
    """
    if directory == "/":
        return "is the root of the file system"
    for home in known.homes:
        if directory == home:
            return "is your home directory"
        if within(home, directory):
            return f"holds your home directory, {home}"
    if secret := holder(known, directory):
        return f"is or lies in {secret.name}, which no box shows"
    for closed in _CLOSED:
        if within(directory, closed):
            return f"is or lies in {closed}, which belongs to the system"
    if directory in _SHARED:
        return "is shared by all programs of this host"
    return None


def working_directory(known: Known) -> str:
    """The directory that this process is in, as a box's own: absolute, all links followed."""
    elsewhere = "Change to a project's directory and start it there."
    try:
        # By the kernel, not PWD: a shell's opinion may go through links.
        directory = os.getcwd()
    except FileNotFoundError:
        raise BoxError(
            "The working directory has been deleted; a box needs one that it can show.",
            hint=elsewhere,
        ) from None
    except OSError as error:
        raise BoxError(
            f"The working directory is unknown: {error.strerror}.", hint=elsewhere
        ) from error
    if not directory.startswith("/"):
        # getcwd(3): it is outside of this process's root, or its file system was unmounted.
        raise BoxError("The working directory cannot be reached by any path.", hint=elsewhere)
    check_directory(known, directory)
    return directory


def check_directory(known: Known, directory: str) -> None:
    """Make sure that a box may begin in a directory.

    Args:
        directory: absolute, all links followed.
    """
    if reason := why_refused(known, directory):
        raise BoxError(
            f"{printable(directory)} {reason}: no box is started in it, which could change all "
            "that is there.",
            hint="Change to a project's directory and start it there.",
        )
    if not os.access(directory, os.R_OK | os.X_OK):
        raise BoxError(
            f"{printable(directory)} cannot be read by you.",
            hint=f"Allow it: chmod u+rx {printable(directory)}",
        )


def check_shown(known: Known, path: str, real: str) -> None:
    """Make sure that what somebody asks to be shown is no secret."""
    reason = None
    if secret := holder(known, real):
        reason = f"is or lies in {secret.name}, which no box shows"
    elif any(within(home, real) for home in known.homes):
        reason = "is or holds your home directory"
    if reason:
        raise BoxError(
            f"{printable(path)} {reason}.",
            hint="Take it out of `show` in [box] of config.toml, or of the variable that names it.",
            exit_code=2,
        )


def masks(known: Known, mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """List the mounts that hide secrets which other mounts would show; to come after all of them.

    Args:
        mounts: mounts of a plan; sources are real paths.
    """
    found: dict[str, Mount] = {}
    for mount in mounts:
        if mount.kind not in ("bind", "ro-bind"):
            continue
        for secret in known.secrets:
            if not within(secret.path, mount.source):
                continue
            below = secret.path[len(mount.source.rstrip("/")) :]
            target = (mount.target.rstrip("/") + below) or "/"
            found[target] = Mount(
                kind="mask",
                target=target,
                masks_file=not secret.is_directory,
                why="a secret",
            )
    return tuple(found[target] for target in sorted(found))


def printable(path: str) -> str:
    """A path for people, whatever bytes it has."""
    return path if path.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in path)
