"""Output of `nix print-dev-env --json`, and the Bash that sets it up in a session; pure.

`nix develop` makes a script of the same data, runs it in a fresh shell in the current directory and
ends with `shellHook` (`Common::makeRcScript`, `toBash` and `ignoreVars` in Nix's
`src/nix/develop.cc`, versions 2.8 to 2.35). What it prints without `--json` is no substitute: that
names files of structured attributes which Nix has deleted by then. This is that script, with these
differences in a jail:

- It runs in the project's directory, as `nix develop` does, and then goes to the working directory
  of the session.
- `outputs/` for what phases install is in the session's workspace; the project is read-only.
- `mktemp` gets `/tmp`, the default of a host, since `TMPDIR` in a jail is the workspace.

Each session's own Bash runs it, in steps, before any other code. Only the shell itself can have
functions, arrays and options; the environment of `nix develop -c env` has none of these. The hook
runs in the jail and not on the host, as it would with direnv. Each step has a time limit and may
end its shell: a hook that runs `exec fish` loses only its own effect.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from nsm.wire.decode import DecodeError, decode
from nsm.wire.tuples import NamedTuple
from nsmd.model.values import SetupStep

IGNORED = frozenset(
    (
        *("BASHOPTS", "HOME", "NIX_BUILD_TOP", "NIX_ENFORCE_PURITY", "NIX_LOG_FD", "NIX_REMOTE"),
        *("PPID", "SHELL", "SHELLOPTS", "SSL_CERT_FILE", "TEMP", "TEMPDIR", "TERM", "TMP"),
        *("TMPDIR", "TZ", "UID"),
    )
)
"""`ignoreVars` of develop.cc. Only some versions have `SHELL` there; in all of them the shell that
is started decides about it.
"""

PREPENDED = ("PATH", "XDG_DATA_DIRS")
"""`savedVars`: the jail's values come after the shell's."""

TEMPORARY = ("TMP", "TMPDIR", "TEMP", "TEMPDIR")

ATTRIBUTES = {".attrs.sh": "NIX_ATTRS_SH_FILE", ".attrs.json": "NIX_ATTRS_JSON_FILE"}
"""Files of a derivation with structured attributes, and the variables that name them."""

ATTRIBUTES_DIRECTORY = "/tmp/nix-develop"  # noqa: S108 - in the jail

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION_NAME = re.compile(r"[^\s\"#$&'()*/;<=>?\[\\\]`{|}~]+")
"""Names that Bash defines without quotes; it has no others."""

VARIABLES_STEP = "the development shell"
HOOK_STEP = "shellHook"
LAST_STEP = "the end"


class DevEnvError(Exception):
    """The text is not the output of `nix print-dev-env --json`; the message says why."""


_KINDS: Mapping[str, Any] = {
    "exported": str,
    "var": str,
    "array": tuple[str, ...],
    "associative": dict[str, str],
}
"""Types of the values of variables, by what Nix calls them. It makes nothing of others, such as
integers, read-only ones and references, either.
"""


class ShellVariable(NamedTuple):
    """A variable: a text, an indexed or an associative array, by its type in `_KINDS`."""

    type: str = ""
    value: Any = None


class DevEnv(NamedTuple):
    """Variables and functions of a derivation's shell after its set-up, as Nix prints them.

    Attributes:
        structuredAttrs: contents of the files of `ATTRIBUTES`; none without structured attributes.
    """

    variables: dict[str, ShellVariable]
    bashFunctions: dict[str, str]  # noqa: N815  # Nix's name
    structuredAttrs: dict[str, str] = {}  # noqa: N815, RUF012

    def text(self, name: str) -> str:
        """Value of a variable that is a text; empty if there is none."""
        value = self.variables.get(name, ShellVariable()).value
        return value if isinstance(value, str) else ""


def parse(data: bytes) -> DevEnv:
    """Parse Nix's output; leave out what Bash could not have.

    Raises:
        DevEnvError: it is something else.
    """
    name = ""
    try:
        printed = decode(DevEnv, json.loads(data))
        variables: dict[str, ShellVariable] = {}
        for name, (kind, value) in printed.variables.items():
            if kind in _KINDS and VARIABLE_NAME.fullmatch(name):
                variables[name] = ShellVariable(kind, decode(_KINDS[kind], value))
    except DecodeError as error:
        raise DevEnvError(f"variable {name}: {error}" if name else str(error)) from None
    except (ValueError, RecursionError) as error:
        raise DevEnvError(f"it is not JSON: {error}") from None
    functions = {n: f for n, f in printed.bashFunctions.items() if _FUNCTION_NAME.fullmatch(n)}
    return printed._replace(variables=variables, bashFunctions=functions)


def setup_steps(
    shell: DevEnv, *, project: str, workspace: str, program: str, root: str
) -> tuple[SetupStep, ...]:
    """Make the steps that turn a session's Bash into such a shell."""
    replaced = _replacements(shell, workspace)
    shell_is = f"export SHELL={shlex.quote(program)}\n"
    begin = _rewrite("".join(_script(shell, project)), replaced)
    begin += f"export NIX_GCROOT={shlex.quote(root)}\n{shell_is}"
    end = (
        f"{shell_is}"
        # If a hook changed the directory, that stays.
        f"[[ $PWD != {shlex.quote(project)} ]] || builtin cd -- {shlex.quote(workspace)}\n"
        "shopt -s expand_aliases\n"
    )
    steps = [SetupStep(name=VARIABLES_STEP, code=begin)]
    if shell.text("shellHook").strip():
        steps.append(SetupStep(name=HOOK_STEP, code='eval "${shellHook:-}"\n'))
    return (*steps, SetupStep(name=LAST_STEP, code=end))


def _script(shell: DevEnv, project: str) -> Iterator[str]:
    yield f"builtin cd -- {shlex.quote(project)}\n"
    yield "shopt -u expand_aliases\n"
    yield "unset shellHook\n"
    for name in PREPENDED:
        yield f'{name}=${{{name}:-}}\nnix_saved_{name}="${name}"\n'
    yield from _attributes(shell)
    for name, variable in sorted(shell.variables.items()):
        if name not in IGNORED:
            yield from _assignment(name, variable)
    for name, body in sorted(shell.bashFunctions.items()):
        yield f"{name} ()\n{{\n{body}}}\n"
    for name in PREPENDED:
        yield f'{name}="${name}${{nix_saved_{name}:+:$nix_saved_{name}}}"\n'
    yield 'export NIX_BUILD_TOP="$(TMPDIR=/tmp mktemp -d -t nix-shell.XXXXXX)"\n'
    for name in TEMPORARY:
        yield f'export {name}="$NIX_BUILD_TOP"\n'


def _assignment(name: str, variable: ShellVariable) -> Iterator[str]:
    match variable.type:
        case "array":
            yield f"declare -a {name}=({' '.join(map(_quoted, variable.value))})\n"
        case "associative":
            pairs: Mapping[str, str] = variable.value
            inside = " ".join(f"[{_quoted(key)}]={_quoted(value)}" for key, value in pairs.items())
            yield f"declare -A {name}=({inside})\n"
        case kind:
            yield f"{name}={_quoted(variable.value)}\n"
            if kind == "exported":
                yield f"export {name}\n"


def _attributes(shell: DevEnv) -> Iterator[str]:
    if shell.structuredAttrs:
        yield f"mkdir -p {ATTRIBUTES_DIRECTORY}\n"
    for name in filter(shell.structuredAttrs.get, ATTRIBUTES):
        content = _quoted(shell.structuredAttrs[name])
        yield f"printf %s {content} >{ATTRIBUTES_DIRECTORY}/{name}\n"


def _replacements(shell: DevEnv, workspace: str) -> dict[str, str]:
    """Map the build's paths in its variables to the paths here.

    Outputs do not exist; a file of structured attributes belongs to a build that has ended.
    """
    outputs = shell.variables.get("outputs", ShellVariable())
    paths: Mapping[str, str] = {name: shell.text(name) for name in shell.text("outputs").split()}
    if outputs.type == "associative":
        paths = outputs.value
    places = {path: f"{workspace}/outputs/{name}" for name, path in paths.items()}
    for name in filter(shell.structuredAttrs.get, ATTRIBUTES):
        places[shell.text(ATTRIBUTES[name])] = f"{ATTRIBUTES_DIRECTORY}/{name}"
    return {path: place for path, place in places.items() if path}


def _rewrite(script: str, replaced: Mapping[str, str]) -> str:
    """Replace all at once, like Nix's `rewriteStrings`: the longest match first."""
    if not replaced:
        return script
    known = "|".join(re.escape(path) for path in sorted(replaced, key=len, reverse=True))
    return re.sub(known, lambda found: replaced[found[0]], script)


def _quoted(text: str) -> str:
    # NUL cannot be in a variable.
    return shlex.quote(text.replace("\0", ""))
