"""Artifact directories as Nix builds them, written by hand around this host's bwrap and Python.

What a wrapper does with its environment and arguments is `docs/reference/formats.md`; these are
as near to what jail.nix generates as is possible without a store: Bash scripts that collect
arguments and execute bwrap. `write_artifact` makes one that nsm's Nix library could have made,
`write_older` one of nix-sandbox-mcp's layout, with an agent that speaks the base protocol only
(`older_agent.py`), and `write_run_only` one without sessions.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import marshal
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nsm.jail.seccomp import filter_program
from nsmd.environments.artifacts.metadata import TEMPLATE_PROTOCOL
from nsmd.jail.arguments import SYNTHETIC_FILES
from nsmd.jail.host import scan_host
from nsmd.jail.program_code import source_of
from nsmd.model.values import Artifact, Environment, Interpreter
from realjail import BWRAP

PYTHON = "/usr/bin/python3"
"""Runs agents and templates: one that every user may run."""

PROGRAMS: Mapping[Interpreter, str] = {
    "python": PYTHON,
    "bash": "/bin/bash",
    "node": "/usr/bin/node",
}

STORE = Path("/nix/store/artifact")
"""Path at which a jail shows the artifact's own files."""

ONE_EXECUTION: Mapping[Interpreter, str] = {
    "python": 'exec /usr/bin/python3 -c "$code"',
    "bash": 'exec /bin/bash -c "$code"',
    "node": 'exec /usr/bin/node -e "$code"',
}

OlderWrapper = Literal["exec", "trap", "child", "lasting"]
"""How an older wrapper starts bwrap: in its own place, as jail.nix does; as a child, with a cleanup
afterwards, as jail.nix does where something has to be cleaned up; as a child without; or as a child
that does not die with it."""

_HEAD = """\
#!/bin/bash
set -o errexit
set -o nounset
set -o pipefail
RUNTIME_ARGS=()
"""


def write_artifact(
    folder: Path,
    name: str = "science",
    *,
    interpreter: Interpreter = "python",
    template: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """An artifact of schema 1 in `folder / name`; returns that.

    Args:
        template: whether there is a `template-run`.
        metadata: replaces and adds keys of metadata.json.
    """
    artifact = _begin(folder, name)
    (artifact / "lib").mkdir()
    for path, text in SYNTHETIC_FILES:
        (artifact / "lib" / os.path.basename(path)).write_text(text)
    for path, code in _programs().items():
        (artifact / "lib" / path).write_bytes(code)
    library = STORE / "lib"
    facts: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "interpreter_type": interpreter,
        "timeout_seconds": 30,
        "memory_mb": 512,
        "program": PROGRAMS[interpreter],
        "takes": ["policy", "variables"],
    }
    agent = [PYTHON, "-I", str(library / "agent"), f"--{interpreter}", PROGRAMS[interpreter]]
    own = ["--as-pid-1", "--disable-userns", "--hostname", "nsm"]
    filtered = f"exec {{FILTER}}<{artifact / 'lib' / 'filter'}\n"
    filtered += 'RUNTIME_ARGS+=(--add-seccomp-fd "$FILTER")\n'
    private = _sized("shm", "/dev/shm", "1777") + _sized("tmp", "/tmp", "1777")
    private += _sized("workspace", "/workspace", "0755")
    _wrapper(artifact, "session-run", filtered, own, private, agent, workdir="/workspace")
    one = ["/bin/bash", "-c", _one_execution(interpreter)]
    _wrapper(artifact, "run", filtered, own, private, one, workdir="/workspace")
    if template:
        facts["template"] = TEMPLATE_PROTOCOL
        empty = "RUNTIME_ARGS+=(--dir /dev/shm --dir /tmp --dir /workspace)\n"
        command = [PYTHON, "-I", str(library / "template"), str(library / "agent")]
        _wrapper(artifact, "template-run", "", [], empty, [*command, str(library / "filter")], "/")
    (artifact / "metadata.json").write_text(json.dumps({**facts, **(metadata or {})}))
    return artifact


def write_older(
    folder: Path,
    name: str = "older",
    *,
    interpreter: Interpreter = "python",
    wrapper: OlderWrapper = "exec",
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """An artifact as nix-sandbox-mcp's library makes it; returns its directory.

    Args:
        wrapper: with "trap", `cleaned-up` in the wrapper's HOME says that the trap has run.
    """
    artifact = _begin(folder, name)
    (artifact / "agent.py").write_text(Path(__file__).with_name("older_agent.py").read_text())
    agent = [PYTHON, "-I", str(STORE / "agent.py")]
    _older_wrapper(artifact, "session-run", agent, wrapper)
    _older_wrapper(artifact, "run", ["/bin/bash", "-c", _one_execution(interpreter)], wrapper)
    _older_metadata(artifact, name, interpreter, metadata)
    return artifact


def write_run_only(
    folder: Path,
    name: str = "once",
    *,
    interpreter: Interpreter = "python",
    wrapper: OlderWrapper = "exec",
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """An older artifact that has no `session-run`; returns its directory."""
    artifact = _begin(folder, name)
    _older_wrapper(artifact, "run", ["/bin/bash", "-c", _one_execution(interpreter)], wrapper)
    _older_metadata(artifact, name, interpreter, metadata)
    return artifact


def write_program(path: Path, text: str, mode: int = 0o755) -> None:
    """An executable file in place of a wrapper."""
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)


def environment_of(artifact: Path) -> Environment:
    """Make the environment that discovery makes of this module's directories, without its
    checks."""
    facts = json.loads((artifact / "metadata.json").read_text())

    def program(name: str) -> str | None:
        path = artifact / "bin" / name
        return str(path) if path.exists() else None

    return Environment(
        name=facts["name"],
        interpreter=facts["interpreter_type"],
        program=facts.get("program", ""),
        timeout_s=float(facts["timeout_seconds"]),
        memory_mb=facts["memory_mb"],
        preload=tuple(facts.get("preload", ())),
        source=str(artifact),
        artifact=Artifact(
            run=str(artifact / "bin" / "run"),
            session_run=program("session-run"),
            template_run=program("template-run"),
            schema=facts.get("schema", 0),
            stamp=str(artifact.stat().st_ino),
            takes=frozenset(facts.get("takes", ())),
        ),
    )


def _begin(folder: Path, name: str) -> Path:
    artifact = folder / name
    (artifact / "bin").mkdir(parents=True)
    for path in (artifact, artifact / "bin"):
        path.chmod(0o755)
    return artifact


def _older_metadata(
    artifact: Path, name: str, interpreter: Interpreter, changes: Mapping[str, Any] | None
) -> None:
    facts = {
        "name": name,
        "interpreter_type": interpreter,
        "timeout_seconds": 30,
        "memory_mb": 512,
        **(changes or {}),
    }
    (artifact / "metadata.json").write_text(json.dumps(facts))


@functools.cache
def _programs() -> Mapping[str, bytes]:
    """Agent and template, compiled for `PYTHON` as Nix does it at build time, and the filter."""
    system_calls = filter_program(platform.machine())
    return {
        "agent": _compiled("sandbox_agent"),
        "template": _compiled("sandbox_template"),
        "filter": system_calls or b"",
    }


def _compiled(program: str) -> bytes:
    source = source_of(program)
    # The tests' own Python is as good as PYTHON only where both are one version.
    if not os.path.realpath(PYTHON).endswith(".".join(platform.python_version_tuple()[:2])):
        return source
    code = compile(source, program, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def _one_execution(interpreter: Interpreter) -> str:
    """Command for the jail of `run`: the code is an argument, whose length the kernel limits."""
    return (
        'code="$(cat)"\n'
        "if [ ${#code} -ge 131072 ]; then\n"
        '  echo "run: the code has more than 128 KiB, which is all that fits an argument" >&2\n'
        "  exit 1\n"
        "fi\n"
        f"{ONE_EXECUTION[interpreter]}"
    )


def _system() -> list[str]:
    """Arguments that show `/usr` and what belongs to it: in place of a closure."""
    host = scan_host()
    words = ["--ro-bind", "/usr", "/usr"]
    for target, path in host.links:
        words += ["--symlink", target, path]
    for path in (*host.directories, *host.etc):
        words += ["--ro-bind", path, path]
    return words


def _sized(name: str, path: str, mode: str) -> str:
    default = {"workspace": 512, "tmp": 256, "shm": 64}[name]
    variable = f"NSM_{name.upper()}_MB"
    return (
        f'size="${{{variable}:-{default}}}"\n'
        f'[[ "$size" =~ ^[0-9]{{1,6}}$ ]] || {{ echo "{variable}: digits only" >&2; exit 2; }}\n'
        f'RUNTIME_ARGS+=(--perms {mode} --size "$((size * 1048576))" --tmpfs {path})\n'
    )


_PROJECT = """\
if [ "${PROJECT_MODE:-readonly}" = overlay ]; then
  echo "PROJECT_MODE=overlay is not available yet" >&2
  exit 2
fi
if [ -n "${NSM_PROJECT_FD:-}" ]; then
  RUNTIME_ARGS+=(--ro-bind-fd "$NSM_PROJECT_FD" "${PROJECT_MOUNT:-/project}")
elif [ -n "${PROJECT_DIR:-}" ]; then
  RUNTIME_ARGS+=(--ro-bind "$PROJECT_DIR" "${PROJECT_MOUNT:-/project}")
fi
"""

_INFO = """\
if [ -n "${NSM_INFO_FD:-}" ]; then
  RUNTIME_ARGS+=(--info-fd "$NSM_INFO_FD")
fi
"""

_MORE = """\
if [ -n "${NSM_POLICY_FD:-}" ]; then
  RUNTIME_ARGS+=(--perms 0444 --file "$NSM_POLICY_FD" /run/nsm/policy.json)
fi
if [ -n "${NSM_VARIABLES_FD:-}" ]; then
  LATE_ARGS+=(--args "$NSM_VARIABLES_FD")
fi
"""

_NAMESPACES = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
    *("--unshare-cgroup-try", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"),
    *("--new-session", "--clearenv"),
)

_VARIABLES = {
    "HOME": "/workspace",
    "LANG": "C.UTF-8",
    "LOGNAME": "user",
    "PATH": "/usr/bin:/bin",
    "TERM": "dumb",
    "TMPDIR": "/workspace",
    "USER": "user",
}


def _wrapper(
    artifact: Path,
    name: str,
    runtime: str,
    options: Sequence[str],
    places: str,
    command: Sequence[str],
    workdir: str,
) -> None:
    fixed = [*_NAMESPACES, *options, *_system(), "--proc", "/proc", "--dev", "/dev"]
    fixed += ["--ro-bind", "/dev/null", "/proc/keys"] if "--as-pid-1" in options else []
    # Before what is mounted below it at run time.
    late = ["--ro-bind", str(artifact), str(STORE)]
    for path, _ in SYNTHETIC_FILES:
        late += ["--ro-bind", str(artifact / "lib" / os.path.basename(path)), path]
    late += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", workdir]
    for variable, value in _VARIABLES.items():
        late += ["--setenv", variable, value]
    write_program(
        artifact / "bin" / name,
        f"{_HEAD}LATE_ARGS=()\n{runtime}{places}{_INFO}{_MORE}{_PROJECT}"
        f'exec {BWRAP} {shlex.join(fixed)} "${{RUNTIME_ARGS[@]}}" {shlex.join(late)} '
        f'"${{LATE_ARGS[@]}}" -- {shlex.join(command)} "$@"\n',
    )


_STARTS: Mapping[OlderWrapper, tuple[str, str, str]] = {
    "exec": ("", "exec ", " --die-with-parent"),
    "trap": (
        'function cleanup {\n  touch "$HOME/cleaned-up"\n}\ntrap cleanup EXIT\n',
        "",
        " --die-with-parent",
    ),
    "child": ("", "", " --die-with-parent"),
    "lasting": ("", "", ""),
}
"""Beginning of the program, the start of bwrap, and its last options."""


def _older_wrapper(
    artifact: Path, name: str, command: Sequence[str], wrapper: OlderWrapper
) -> None:
    # As jail.nix has it: one passwd per home, a home that is the host's, and LANG or nothing.
    data = "~/.local/share/jail.nix"
    passwd = (
        f"if [ ! -e {data}/passwd ]; then\n"
        f"  mkdir -p {data}\n"
        f'  echo "user:x:$(id -u):$(id -g)::$HOME:/bin/false" > {data}/passwd\n'
        "fi\n"
    )
    project = (
        'if [ -n "${PROJECT_DIR:-}" ] && [ -d "$PROJECT_DIR" ]; then\n'
        '  RUNTIME_ARGS+=(--ro-bind "$PROJECT_DIR" "${PROJECT_MOUNT:-/project}")\n'
        "fi\n"
    )
    first, start, last = _STARTS[wrapper]
    options = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    shown = ["--clearenv", *_system(), "--ro-bind", str(artifact), str(STORE)]
    shown += ["--tmpfs", "/workspace", "--setenv", "HOME", "/workspace", "--setenv", "TERM", "dumb"]
    shown += ["--setenv", "TMPDIR", "/workspace", "--setenv", "PATH", "/usr/bin:/bin"]
    shown += ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    shown += ["--unshare-cgroup-try", "--new-session", "--chdir", "/workspace"]
    # bwrap last, so that Bash has something to do after it and does not take its place.
    write_program(
        artifact / "bin" / name,
        f"{_HEAD}{first}{passwd}{project}"
        f'{start}{BWRAP} {shlex.join(options)} --tmpfs ~ --setenv LANG "$LANG" '
        f"--ro-bind {data}/passwd /etc/passwd {shlex.join(shown)}{last} "
        f'"${{RUNTIME_ARGS[@]}}" -- {shlex.join(command)} "$@"\n'
        + ("" if start else "status=$?\nexit $status\n"),
    )
