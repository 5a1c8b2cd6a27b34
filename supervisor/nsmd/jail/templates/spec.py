"""Choice of the template that a session is forked from, the request to it, and its files."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nsm.dataclass import dataclass, replace
from nsm.jail.proxyvariables import WITHOUT_NETWORK
from nsmd.host.paths import Trail, WatchedPaths, is_within
from nsmd.jail import BwrapLauncher
from nsmd.jail.arguments import GIT_SETTINGS_PATH, NAME_FILES, TemplateSpec, writable_root
from nsmd.jail.host import HOSTNAME, network_files
from nsmd.model.policy import Policy, jail_variables, session_file_systems
from nsmd.model.values import (
    NO_NETWORK,
    Environment,
    JailSizes,
    JailSpec,
    NetworkRule,
    SessionLimits,
)

MAX_VARIABLES_BYTES = 32 * 1024
"""Largest size of an environment's variables in one request, which is one message to
the template.
"""


MAX_REQUEST_BYTES = 64 * 1024
"""Largest message that a template accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPlan:
    """Plan for forking sessions of one specification. `impossible` says why they need jails of
    their own; it is empty if they can be forks.
    """

    template: TemplateSpec
    impossible: str = ""
    request: bytes = b""
    policy: Policy | None = None


def plan_fork(cold: BwrapLauncher, spec: JailSpec, rehearsed: bool) -> ForkPlan:
    """Plan how to fork sessions of a specification. Equal arguments give equal plans; `rehearsed`
    is that of the specification, given again since comparisons of these leave it out.
    """
    template = template_of(spec)
    if reason := why_unforkable(spec):
        return ForkPlan(template=template, impossible=reason)
    policy = cold.policy(spec, forked=True)
    request = request_for(replace(spec, rehearsed=rehearsed), cold.limits, policy)
    if len(request) > MAX_REQUEST_BYTES:
        reason = f"its variables and rules take more than {MAX_REQUEST_BYTES} bytes"
        return ForkPlan(template=template, impossible=reason)
    return ForkPlan(template=template, request=request, policy=policy)


def template_of(spec: JailSpec) -> TemplateSpec:
    """Choose the template for such sessions.

    Environments that show the same files share one: a fork of the same Python starts Bash. Modules
    may look at variables while they are imported, so with modules to preload the variables have to
    be the same, too. Those of most sessions, which have no network, are there in any case: a fork
    sets only what its template has otherwise.
    """
    environment = spec.environment
    return TemplateSpec(
        agent_python=environment.agent_python,
        binds=environment.binds,
        links=environment.links,
        path=environment.path,
        preload=_imports(environment),
        project=spec.project,
        artifact=environment.artifact,
        image=environment.image,
        shown_devices=environment.shown_devices,
        host_network=spec.network.mode == "full",
        named_hosts=spec.network.mode == "allow",
        variables=_template_variables(spec),
        worker=_worker(environment),
    )


def can_preload(environment: Environment) -> bool:
    """Return whether code can find modules imported: in forks of a template's process, or in
    interpreters of an image, each of which imports them itself.
    """
    if environment.interpreter != "python":
        return False
    if environment.image is not None:
        return not environment.only_programs
    if environment.artifact is not None:
        return environment.artifact.template_run is not None
    return environment.program == environment.agent_python != ""


def _worker(environment: Environment) -> str:
    """The image's Python, which runs beside the template; the template has the host's."""
    image = environment.image
    if image is None or environment.interpreter != "python":
        return ""
    return environment.program


def _imports(environment: Environment) -> tuple[str, ...]:
    """Modules that a template imports, or the image's Python beside it."""
    return environment.preload if environment.image is None or _worker(environment) else ()


def template_like(template: TemplateSpec, environment: Environment) -> TemplateSpec:
    """Choose the template for sessions of an environment in the project and network of another
    template.
    """
    spec = JailSpec(
        environment=environment,
        project=template.project,
        sizes=JailSizes(),
        network=NetworkRule(mode="full") if template.host_network else NO_NETWORK,
    )
    return template_of(spec)


def _template_variables(spec: JailSpec) -> tuple[tuple[str, str], ...]:
    environment = spec.environment
    if environment.artifact is not None:
        return ()
    # The loader reads where a driver's libraries lie when the template's Python starts.
    needed = _imports(environment) or environment.shown_devices
    wanted = environment.variables if needed else ()
    return wanted if spec.network.mode == "full" else (*WITHOUT_NETWORK, *wanted)


def why_unforkable(spec: JailSpec) -> str | None:
    """Return why such a session needs a jail of its own; None if it may be a fork."""
    variables = jail_variables(spec.environment, spec.network)
    if len(json.dumps(variables)) > MAX_VARIABLES_BYTES:
        return f"its variables take more than {MAX_VARIABLES_BYTES} bytes"
    artifact = spec.environment.artifact
    if artifact is not None and artifact.template_run is None:
        kind = "an older artifact" if artifact.schema == 0 else "an artifact"
        return f"it is {kind} without templates"
    if artifact is not None and spec.network.mode == "full":
        return "an artifact makes jails without the host's network"
    targets = [bind.target for bind in spec.environment.binds]
    targets += [path for path, _ in spec.environment.links]
    if spec.project is not None:
        mount_point = spec.project.mount_point
        for target in targets:
            if is_within(target, mount_point):
                # At its start Python runs the lines of its own `.pth` files.
                return f"{target} is part of the project, whose code is not for a template to run"
        targets += [mount_point, *([git.mount_point] if (git := spec.project.git) else [])]
    for target in targets:
        for place, _, _ in session_file_systems(spec.sizes):
            if is_within(target, place):
                return f"{target} is shown below {place}, which each session has for itself"
    return None


def _root(spec: JailSpec) -> dict[str, Any]:
    """The part of the request for a root directory that the session may change."""
    image = spec.environment.image
    if image is None or not image.writable:
        return {}
    more = [] if spec.project is None else [spec.project.mount_point]
    copied = [GIT_SETTINGS_PATH]
    if spec.network.mode == "full":
        copied += [path for path, _ in network_files()]
    elif spec.network.mode == "allow":
        copied += [path for path, _ in NAME_FILES]
    return {"root": writable_root(spec.sizes.overlay_mb, more=more, copied=copied)}


def request_for(spec: JailSpec, limits: SessionLimits, policy: Policy) -> bytes:
    """Make the request to the template (`docs/contributing/agent-protocol.md`, "Templates").

    The first part is the same for many sessions, and the template remembers it. The rest, after the
    first NUL, is for one session only: other forks of the template may belong to other clients.
    """
    environment, project = spec.environment, spec.project
    programs = {environment.interpreter: environment.program} if environment.program else {}
    common = json.dumps(
        {
            "prestart": None if environment.only_programs else environment.interpreter,
            "rehearse": spec.rehearsed,
            "programs": programs,
            "sizes": {path: size_mb for path, size_mb, _ in session_file_systems(spec.sizes)},
            "hostname": HOSTNAME,
            "limits": limits.of_interpreters(environment),
            "overlay": {"path": project.mount_point, "size_mb": spec.sizes.overlay_mb}
            if project is not None and project.copied
            else None,
            "names": spec.network.mode == "allow",
            **_root(spec),
        }
    )
    named = dict(jail_variables(environment, spec.network))
    variables = [f"{name}={value}" for name, value in named.items()]
    text = "\0".join([common, policy.as_text(), *variables])
    return text.encode(errors="surrogateescape")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesState:
    """State of these files at one moment. The text differs if another file is at one of the paths,
    or has other content.
    """

    state: str
    changed_s: float = 0.0
    places: WatchedPaths


def host_paths(spec: TemplateSpec, loaded: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Paths on the host of the files that a template consists of; `loaded` has names by directory,
    as seen in its jail.
    """
    shown = [(bind.target, bind.source) for bind in spec.binds]
    if spec.project is not None:
        shown.append((spec.project.mount_point, spec.project.path))
    shown.sort(key=lambda each: len(each[0]), reverse=True)

    def on_host(path: str) -> str:
        for target, source in shown:
            if is_within(path, target):
                return source + path[len(target) :]
        return path

    paths = [spec.agent_python]
    paths += [os.path.join(directory, name) for directory in loaded for name in loaded[directory]]
    return [on_host(path) for path in paths]


def read_state(paths: Sequence[str]) -> FilesState:
    """Read the state of all of them: some 10 us each."""
    trail = Trail(())
    digest = hashlib.sha256()
    now, changed_s = time.time(), 0.0
    for path in paths:
        try:
            found = trail.status(trail.follow(path, trusted=False))
        except OSError:
            digest.update(b"-")
            continue
        digest.update(
            b"%d %d %d %d;" % (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        )
        if found.st_ctime <= now:  # else the clock was set back
            changed_s = max(changed_s, found.st_ctime)
    return FilesState(state=digest.hexdigest(), changed_s=changed_s, places=trail.places)
