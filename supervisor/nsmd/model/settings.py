"""Settings as frozen values with their defaults.

The same classes are the schema of `config.toml`: `nsmd.config.config_file` reads the file into them
with `nsm.wire.decode`, which takes types and bounds from their annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Annotated, Literal, get_args

from nsm.dataclass import dataclass, field
from nsm.wire.decode import Constraint, between
from nsmd.model.packages import MAX_DEVICES, WantedPackages
from nsmd.model.secrets import MAX_HOSTS, MAX_SECRETS, SecretRule, parse_secret
from nsmd.model.values import NetworkRule

Preset = Literal["python", "bash", "node"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
OLDER_PRESETS: Mapping[str, Preset] = {"shell": "bash"}
"""Older names of presets, which configuration may still use."""


HIDDEN = "(not shown)"
"""Shown in place of a value that may be a secret."""

MAX_SECONDS = 366 * 86400
MAX_MEGABYTES = 1024 * 1024


def _list_of(most: int) -> Constraint:
    def fits(items: Sized) -> bool:
        return len(items) <= most

    return Constraint(fits, f"a list of at most {most} texts", early=True)


def _is_positive(limit: float) -> Constraint:
    def fits(number: float) -> bool:
        return 0 < number <= limit

    return Constraint(fits, f"a number more than 0, at most {limit}")


Seconds = Annotated[float, _is_positive(MAX_SECONDS)]
Megabytes = Annotated[int, between(1, MAX_MEGABYTES)]
CpuWeight = Annotated[int, between(1, 10_000)]
"""Weight as in cgroups (cgroup-v2.rst, cpu.weight)."""

NotEmpty = Annotated[str, Constraint(bool, "a text that is not empty")]

DEFAULT_JAIL_UID = 65530
"""Host user and group of jails under a supervisor started by root.

It is one of 65520 to 65533, which nobody allocates (systemd's UIDS-GIDS document, Debian policy
9.2.2). So it belongs to no person, is none of systemd's dynamic users (61184 to 65519), and is not
`nobody`, whose other processes would share its kernel quotas. It is below 65536, so that containers
have it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """`[defaults]`: limits of every environment that does not set its own."""

    timeout_seconds: Seconds = 30.0
    memory_mb: Megabytes = 512
    workspace_mb: Megabytes = 512
    tmp_mb: Megabytes = 256
    shm_mb: Megabytes = 64
    overlay_mb: Megabytes = 512
    cpu_weight: CpuWeight = 100
    processes: Annotated[int, between(8, 32768)] = 256
    descriptors: Annotated[int, between(64, 65536)] = 1024
    interrupt_grace_seconds: Seconds = 2.0
    templates: bool = True
    jail_uid: Annotated[int, between(1, 2**32 - 2)] = DEFAULT_JAIL_UID
    env: NotEmpty | None = None


MAX_NETWORK_HOSTS = 256


def _is_short(setting: str | tuple[str, ...]) -> bool:
    return isinstance(setting, str) or len(setting) <= MAX_NETWORK_HOSTS


NetworkSetting = Annotated[
    Literal["off", "full"] | tuple[str, ...],
    Constraint(_is_short, f'"off", "full" or a list of at most {MAX_NETWORK_HOSTS} hosts'),
]
"""Hosts that code may reach: none, all that the host reaches, or a list."""


def network_rule(setting: NetworkSetting) -> NetworkRule:
    """Make the rule of a setting."""
    if isinstance(setting, str):
        return NetworkRule(mode=setting)
    return NetworkRule(mode="allow", allow=setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """`[environments.NAME]`: one environment.

    `flake` is a reference from which Nix builds a sandbox. With `pip`, `requirements` or `project`,
    nsm makes the environment from these Python packages, with `npm` or `package_lock` from these
    Node packages; `allow_builds` lets it build packages that are not ready to use. With `image`,
    its files are those of a container image. Sessions may change them if `root` is overlay, and
    `interpreter` is ``python``, ``bash`` or ``node``. Otherwise
    `preset` selects the interpreter (by default the one with the environment's name), and
    `interpreter` is the absolute path of the program to use instead of the one on PATH. `preload`
    names Python modules that its sessions find imported. `network` says what its sessions may
    reach: nothing, the hosts of a list through a proxy, or all that the host reaches. `env` are
    variables of its sessions; their values may be secrets. `devices` are GPUs that its sessions may
    use. `secrets` names tables `[secrets.NAME]`, of which its sessions see stand-ins.
    """

    preset: Preset | None = None
    flake: str | None = None
    interpreter: str | None = None
    pip: tuple[str, ...] = ()
    requirements: str | None = None
    project: str | None = None
    npm: tuple[str, ...] = ()
    package_lock: str | None = None
    image: str | None = None
    root: Literal["readonly", "overlay"] = "readonly"
    allow_builds: bool = False
    description: str | None = None
    timeout_seconds: Seconds | None = None
    memory_mb: Megabytes | None = None
    cpu_weight: CpuWeight | None = None
    preload: tuple[str, ...] = ()
    network: NetworkSetting = "off"
    devices: Annotated[tuple[str, ...], _list_of(MAX_DEVICES)] = ()
    secrets: Annotated[tuple[str, ...], _list_of(MAX_SECRETS)] = ()
    env: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def packages(self) -> WantedPackages | None:
        """Packages that it is made from; None if it is not."""
        wanted = WantedPackages(
            pip=self.pip,
            requirements=self.requirements or "",
            project=self.project or "",
            npm=self.npm,
            package_lock=self.package_lock or "",
            image=self.image or "",
            language=(self.interpreter or "") if self.image else "",
            root="overlay" if self.root == "overlay" else "",
            interpreter="" if self.image else self.interpreter or "",
            allow_builds=self.allow_builds,
            preload=self.preload,
        )
        return wanted if wanted.text else None

    @property
    def network_rule(self) -> NetworkRule:
        """Network rule of its sessions."""
        return network_rule(self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritSettings:
    """`[project.inherit_env]`: variables that a project's development shell gets from
    its client.
    """

    vars: Annotated[tuple[str, ...], _list_of(64)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSettings:
    """`[project]`: the directory shown to sessions whose client names none.

    With `mode` overlay, code may change it in an overlay of its session. With `use_flake`, Nix
    evaluates the flakes of projects on the host, and each project with a flake has its development
    shell as environment `project`.
    """

    path: str | None = None
    mount_point: str = "/project"
    mode: Literal["readonly", "overlay"] = "readonly"
    use_flake: bool = False
    inherit_env: InheritSettings = field(default_factory=InheritSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """`[session]`: lifetime and number of sessions, and size of files that are copied
    in and out.

    `undo` is the number of calls of a session that can be undone; 0 turns that off. What it takes
    is kept in at most `undo_mb` of memory.

    With `keep`, sessions are saved when they become idle. All saves together may have `saves_mb`,
    else the oldest of these go.
    """

    idle_timeout_seconds: Seconds = 86400.0
    max_lifetime_seconds: Seconds = 604800.0
    max_sessions: Annotated[int, between(1, 100_000)] = 250
    max_queued: Annotated[int, between(1, 100_000)] = 64
    max_file_mb: Megabytes = 1024
    undo: Annotated[int, between(0, 100)] = 0
    undo_mb: Megabytes = 256
    keep: bool = False
    saves_mb: Megabytes = 10240


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """`[pool]`: sessions kept ready; `nsmd.pool.policy` says how many.

    `min_spares` is for each kind in use, if there is room. `max_spares` is for all kinds together;
    0 turns the pool off. All spares may use `memory_percent` of the available memory. A kind has
    spares for `keep_seconds` after its last use.
    """

    min_spares: Annotated[int, between(0, 64)] = 2
    max_spares: Annotated[int, between(0, 1024)] = 16
    memory_percent: Annotated[float, _is_positive(100)] = 10.0
    keep_seconds: Seconds = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NixSettings:
    """`[nix]`: environments that Nix builds; `build_timeout_seconds` is for one build."""

    build_timeout_seconds: Seconds = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """`[network]`: the proxy through which this machine reaches others.

    `upstream` is its URL without a login, or `off`; without it, the supervisor's variables such as
    HTTPS_PROXY count. `upstream_login` is the source of `USER:PASSWORD`, as `from` of a secret.
    Hosts in `no_proxy` are reached without it, and those in NO_PROXY.
    """

    upstream: NotEmpty | None = None
    upstream_login: NotEmpty | None = None
    no_proxy: Annotated[tuple[str, ...], _list_of(256)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSettings:
    """`[packages]`: environments made from packages.

    `build_timeout_seconds` is for one build. `hosts` are hosts that builds may reach, besides the
    indexes of the user's configuration of pip or uv.
    """

    build_timeout_seconds: Seconds = 3600.0
    hosts: Annotated[tuple[str, ...], _list_of(256)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPressureSettings:
    """`[memory_pressure]`: whether sessions that were idle for `idle_seconds` may end when the
    machine is short of memory, the longest idle ones first.
    """

    end_idle_sessions: bool = True
    idle_seconds: Seconds = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSettings:
    """`[drain]`: `timeout_seconds` is how long running code may continue when the supervisor is
    told to end (SIGTERM), before it is interrupted.
    """

    timeout_seconds: Annotated[float, between(0, MAX_SECONDS, "a number")] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """`[mcp]`: limits of what models get."""

    max_result_chars: Annotated[int, between(1000, 10_000_000)] = 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """`[audit]`: record of executions, in `audit.jsonl`.

    With `code`, it has the code itself besides its hash. A file larger than `max_mb` is set aside;
    `keep` is the number of such files.
    """

    enabled: bool = True
    code: bool = False
    max_mb: Annotated[int, between(1, MAX_MEGABYTES)] = 16
    keep: Annotated[int, between(0, 1000)] = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """`[metrics]`: a port on 127.0.0.1 for Prometheus, which does not read Unix sockets. Any user
    of this machine may read them there. None for no port.
    """

    port: Annotated[int, between(1, 65535)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeSettings:
    """`[bridge]`: programs of the host that agents may start (docs/how-to/bridge.md).

    `max_mb` is the size at which `audit.log` is set aside; nothing of it is ever deleted.
    `max_running` is the largest number of programs at once.
    """

    enabled: bool = False
    max_mb: Megabytes = 16
    max_running: Annotated[int, between(1, 1000)] = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """`[http]`: MCP over HTTP (docs/how-to/http.md).

    `listen` is an address of this machine's loopback with a port, or `unix:` and the absolute path
    of a socket. `hosts` and `origins` are accepted values of these headers, besides the address
    itself. Clients there may run code in sessions that see `project` and reach no more than
    `network`, and may start the bridge `programs`.
    """

    enabled: bool = False
    listen: NotEmpty = "127.0.0.1:7643"
    hosts: Annotated[tuple[str, ...], _list_of(64)] = ()
    origins: Annotated[tuple[str, ...], _list_of(64)] = ()
    project: NotEmpty | None = None
    network: NetworkSetting = "full"
    programs: Annotated[tuple[str, ...], _list_of(256)] = ()
    max_body_mb: Annotated[int, between(1, 64)] = 16
    max_connections: Annotated[int, between(1, 1000)] = 64

    @property
    def descriptors(self) -> int:
        """Largest number of descriptors that it uses."""
        return self.max_connections if self.enabled else 0

    @property
    def network_rule(self) -> NetworkRule:
        """Network rule that bounds the sessions of its clients."""
        return network_rule(self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSettings:
    """`[ports]`: ports of sessions (docs/how-to/run-programs.md).

    `open` lists ports to open when a session of that name begins on the command line or in a Python
    client: `SESSION:PORT=ADDRESS`, or `SESSION:PORT` for any free port of the loopback.
    """

    open: Annotated[tuple[str, ...], _list_of(64)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxDefaults:
    """`[box]`: defaults of `nsm box` and `claudebox`.

    The supervisor only checks it; `nsmbox.model.settings` reads it and explains the keys.
    """

    net: NetworkSetting = "full"
    profile: NotEmpty | None = None
    protect: bool = True
    protect_paths: Annotated[tuple[str, ...], _list_of(256)] = ()
    unprotect: Annotated[tuple[str, ...], _list_of(256)] = ()
    show: Annotated[tuple[str, ...], _list_of(256)] = ()
    bridge: Annotated[tuple[str, ...], _list_of(64)] = ()
    secrets: Annotated[tuple[str, ...], _list_of(MAX_SECRETS)] = ()
    add: Annotated[tuple[str, ...], _list_of(256)] = ()
    hide: Annotated[tuple[str, ...], _list_of(256)] = ()
    persist: Annotated[tuple[str, ...], _list_of(256)] = ()
    env: Annotated[tuple[str, ...], _list_of(256)] = ()
    memory_mb: Megabytes | None = None
    home_mb: Megabytes | None = None
    tmp_mb: Megabytes | None = None
    shm_mb: Megabytes | None = None
    cpu_weight: CpuWeight = 100
    processes: Annotated[int, between(8, 32768)] = 4096
    descriptors: Annotated[int, between(64, 1048576)] = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """`[hosts.NAME]`: another machine that has sessions. Clients read it (`nsm.hosts.address`)."""

    address: str | None = None
    ssh: str | None = None
    program: str | None = None
    project: Annotated[
        Literal["path", "copy", "none"],
        Constraint(bool, '"path", "copy" or "none"; nsm no longer pushes commits to hosts'),
    ] = "path"
    directories: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSettings:
    """`[secrets.NAME]`: a secret that sessions and boxes use without seeing it.

    `from` says where its value is: `command: WORDS`, `file: PATH`, `keyring: SERVICE USER` or
    `environment: VARIABLE`. Requests to `hosts` get it. `as` says how code uses it: `env: VARIABLE`
    for a variable with its stand-in, `header: NAME: PREFIX` for a header that nsm adds.
    """

    # Both have no `_` in the file, where they are no words of Python.
    from_: str
    hosts: Annotated[tuple[str, ...], _list_of(MAX_HOSTS)]
    as_: Annotated[tuple[str, ...], _list_of(16)]

    def secret(self, name: str) -> SecretRule:
        """Parse it, or raise `SecretRuleError`."""
        return parse_secret(name, self.from_, self.hosts, self.as_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole of `config.toml`."""

    defaults: Defaults = field(default_factory=Defaults)
    environments: dict[str, EnvironmentSettings] = field(
        default_factory=dict[str, EnvironmentSettings]
    )
    project: ProjectSettings = field(default_factory=ProjectSettings)
    session: SessionSettings = field(default_factory=SessionSettings)
    pool: PoolSettings = field(default_factory=PoolSettings)
    nix: NixSettings = field(default_factory=NixSettings)
    network: UpstreamSettings = field(default_factory=UpstreamSettings)
    packages: PackageSettings = field(default_factory=PackageSettings)
    memory_pressure: MemoryPressureSettings = field(default_factory=MemoryPressureSettings)
    drain: DrainSettings = field(default_factory=DrainSettings)
    mcp: McpSettings = field(default_factory=McpSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    box: BoxDefaults = field(default_factory=BoxDefaults)
    bridge: BridgeSettings = field(default_factory=BridgeSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    ports: PortSettings = field(default_factory=PortSettings)
    hosts: dict[str, HostSettings] = field(default_factory=dict[str, HostSettings])
    secrets: dict[str, SecretSettings] = field(default_factory=dict[str, SecretSettings])


def configured_secrets(settings: Settings) -> dict[str, SecretRule]:
    """Return the secrets, which were checked with the file."""
    return {name: entry.secret(name) for name, entry in settings.secrets.items()}
