"""`nsm env`: list the environments, and build more, from packages or with Nix."""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm import paths
from nsm.cli import options as cli
from nsm.cli import terminal
from nsm.cli.render import environments, formats
from nsm.client.blocking import Client
from nsm.client.environments import ProjectEnvironments
from nsm.client.places import DEFAULT, project_of, why_no_project
from nsm.wire.errors import BadProjectError, NsmError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from nsm.cli.options import Argument
    from nsm.wire.environments import BuiltRow, EnvironmentRow

_EPILOG = """\
Without an ACTION it lists the environments, as `list` does.

`add NAME --pip PACKAGES` makes an environment from Python packages, `add NAME --image IMAGE` from a
container image. `add REF#NAME` has Nix build one from a flake with `lib.mkSandbox` of nsm's flake,
such as github:OWNER/REPO#NAME or ./DIRECTORY#NAME. Builds run in the background, and go on when
you leave.

examples:
  nsm env
  nsm env add science --pip "numpy pandas>=2" --preload pandas
  nsm env add web --image docker://python:3.13-slim
  nsm env add github:me/envs#data-science
  nsm env preload science pandas
  nsm env log -f data-science
  nsm env use .venv
  nsm env use uv.lock
  nsm env update
"""


_EPILOG_OF_USE = """\
From then on all clients of the project have the environment. nsm remembers what you agreed to, and
reports when its packages change. If its interpreter changes, it is unavailable until you agree
again. From a list of packages, nsm makes an environment in the background, with the exact
versions of a lock. If the list changes, the environment stays as you agreed to it.
"""


_EPILOG_OF_PRELOAD = """\
The modules are imported once, and new sessions are forks of that process. Live sessions stay as
they are. `nsm env` says which modules sessions often wait for. For an environment of config.toml,
it says what to write there. Exits 1 if a module cannot be preloaded.
"""


_LEFT = "goes on being built in the background"


def _interpreter(text: str) -> str:
    """Path of a program, which may be given as a version of Python or by its name."""
    version = re.fullmatch(r"(3(?:\.\d+)?)(?:\.\d+)?", text)
    name = f"python{version[1]}" if version else text
    import shutil  # noqa: PLC0415  # 4 ms that few commands pay

    path = name if "/" in name else shutil.which(name, path=paths.search_path())
    if path is None:
        raise argparse.ArgumentTypeError(f"there is no {name} on PATH; name the program's path")
    return os.path.abspath(os.path.expanduser(path))


def _given(spelling: str, does: str) -> Argument:
    """An option that may be repeated; None where it is not given."""
    return cli.repeated(spelling, f"{does}; may be repeated", default=None)


_INTERPRETERS = cli.either(
    cli.value(
        "--python PYTHON",
        "Python to use instead of the usual one: a program, or a version such as 3.13",
        _interpreter,
        dest="interpreter",
    ),
    cli.value(
        "--node NODE",
        "Node to use instead of the usual one: a program",
        _interpreter,
        dest="interpreter",
    ),
)
_ALLOW_BUILDS = cli.flag(
    "--allow-builds",
    "build packages that have no wheel, and run install scripts; this runs their code in a jail",
)
_PROJECT = cli.value("--project DIR", "in DIR, not the current directory")
_NO_WAIT = cli.flag("--no-wait", "return at once")

_env = cli.verb(
    "env",
    "List the environments; build more of them.",
    _EPILOG,
    cli.as_json("an array of objects"),
)


def _list(options: Namespace) -> None:
    with Client() as client:
        rows = client.envs()
        home = os.path.expanduser("~")
        terminal.answer(
            options,
            rows,
            lambda: environments.environments_table(rows, home, terminal.width()),
        )
        if not options.json:
            for line in environments.suggestions(rows):
                terminal.out(line)
            _hint_at_project_environments(client)


_env(_list)
_env.action(
    "list",
    "list the environments, also those that cannot be used here, with the reason",
    "LIMIT is the default and the upper limit of one run.",
    cli.as_json("an array of objects"),
)(_list)


def _hint_at_project_environments(client: Client) -> None:
    """Say which environments lie in the project, if nobody has agreed to use them."""
    project = project_of(DEFAULT).path
    if project is None:
        return
    with suppress(NsmError):  # it is no project that nsm shows, or the connection may not ask
        for line in environments.hints(ProjectEnvironments(client, project).find()):
            terminal.out(line)


@_env.action(
    "show",
    "show everything about an environment",
    "Also why its last build failed. Exits 1 if there is no environment of that name.",
    cli.operand("ENV", "its name"),
    cli.as_json("an object"),
)
def _show(options: Namespace) -> int:
    """One environment: what can be used, what is the matter, and how it was built."""
    with Client() as client:
        rows, name = client.envs(), options.env
        builds = client.builds.list_all()
    found = [row for row in rows if name in (row.name, *row.aliases)]
    built = next((row for row in builds if name in (row.name, row.reference)), None)
    if not found and built is None:
        known = ", ".join(dict.fromkeys(row.name for row in rows if row.name))
        terminal.note(formats.error(f"no environment {name!r}", f"There are: {known}"))
        return cli.EXIT_FAILED
    terminal.answer(
        options, {"environments": found, "build": built}, lambda: _details(found, built)
    )
    return cli.EXIT_OK


def _details(found: Sequence[EnvironmentRow], built: BuiltRow | None) -> str:
    lines = [line for row in found for line in environments.environment_details(row)]
    lines += [
        ("" if number else "slow imports", text)
        for number, text in enumerate(environments.suggestions(found))
    ]
    if built is None:
        return formats.listing(lines)
    lines += environments.build_details(built)
    text = formats.listing(lines)
    if built.error is None:
        return text
    return f"{text}\n\n{formats.error(built.error, built.hint or '')}"


@_env.action(
    "add",
    "build an environment",
    "Exits 1 when its build fails.",
    cli.operand(
        "NAME|REF#NAME",
        "its name, if it is made from packages; else a reference to a flake",
        dest="reference",
    ),
    cli.value("--name NEW", "of a flake: name to use instead of its own"),
    _given("--pip PACKAGES", 'Python packages, such as "numpy pandas>=2"'),
    cli.value("--requirements FILE", "a requirements file of pip"),
    cli.value(
        "--pyproject FILE",
        "a pyproject.toml or its directory, for its uv.lock or dependencies",
    ),
    _given("--npm PACKAGES", 'Node packages, such as "typescript zod@^4"'),
    cli.value("--package-lock FILE", "a package-lock.json, whose packages are installed"),
    cli.value(
        "--image IMAGE",
        "a container image: docker://NAME, oci:DIRECTORY:TAG, oci-archive:FILE or "
        "docker-archive:FILE",
    ),
    cli.value(
        "--interpreter",
        "interpreter of the image; the first of these that it has, if not given",
        dest="language",
        choices=("python", "bash", "node"),
    ),
    cli.value(
        "--root",
        "let sessions change the image's files, each in a copy of its own, in memory",
        choices=("overlay",),
    ),
    _INTERPRETERS,
    _ALLOW_BUILDS,
    _given(
        "--device GPU",
        "let its sessions use GPUs of this machine: nvidia, nvidia:NUMBER, amd or dri",
    ),
    _given("--preload MODULES", "modules that its sessions find imported"),
    _NO_WAIT,
    cli.as_json("the environment"),
)
def _add(options: Namespace) -> int:
    wait = not options.no_wait
    with Client() as client, environments.BuildProgressLine() as progress:
        packages = (options.pip, options.requirements, options.pyproject)
        others = (options.npm, options.package_lock, options.image, options.language, options.root)
        # What a flake cannot have is not left out silently: the supervisor refuses it.
        only = (options.device, options.preload, options.interpreter, options.allow_builds)
        if any((*packages, *others, *only)):
            row = client.builds.add_packages(
                options.name or options.reference,
                pip=_words(options.pip),
                requirements=_absolute(options.requirements),
                project=_pyproject(options.pyproject),
                npm=_words(options.npm),
                package_lock=_absolute(options.package_lock),
                image=_image(options.image),
                language=options.language,
                root=options.root,
                interpreter=options.interpreter,
                allow_builds=options.allow_builds,
                preload=_words(options.preload),
                devices=_words(options.device),
                wait=wait,
                on_progress=progress.show,
            )
        else:
            row = client.builds.add(
                environments.absolute(options.reference),
                name=options.name,
                wait=wait,
                on_progress=progress.show,
            )
    return _tell([row], options, environments.added)


def _words(given: Sequence[str] | None) -> list[str]:
    """Split at spaces: each option takes several words, and may be repeated."""
    return [word for each in given or () for word in each.replace(", ", " ").split()]


def _image(reference: str | None) -> str | None:
    """Make a path in a reference to an image absolute."""
    transport, colon, rest = (reference or "").partition(":")
    if transport not in {"oci", "oci-archive", "docker-archive"} or not colon:
        return reference
    place, colon, tag = rest.partition(":")
    return f"{transport}:{_absolute(place)}{colon}{tag}"


def _pyproject(path: str | None) -> str | None:
    """Absolute path of a pyproject.toml, given by its own path or its directory's."""
    absolute = _absolute(path)
    if absolute is not None and os.path.isdir(absolute):
        return os.path.join(absolute, "pyproject.toml")
    return absolute


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(os.path.expanduser(path))


@_env.action(
    "builds",
    "list built environments, and the progress of their builds",
    "",
    cli.as_json("an array of objects"),
)
def _list_builds(options: Namespace) -> None:
    with Client() as client:
        rows = client.builds.list_all()
    terminal.answer(options, rows, lambda: environments.builds_table(rows))


@_env.action(
    "rm",
    "remove a built environment, and cancel its build",
    "Its sessions live on.",
    cli.operand("BUILT ...", "a name, or a reference", dest="names"),
    cli.as_json("an array of those that were removed"),
)
def _rm(options: Namespace) -> int:
    with Client() as client:
        report = client.builds.remove([environments.absolute(name) for name in options.names])
    terminal.answer(
        options,
        report.removed,
        lambda: "\n".join(f"removed {formats.visible(row.name)}" for row in report.removed),
    )
    for failed in report.errors:
        terminal.report(failed.error)
    return cli.EXIT_FAILED if report.errors else cli.EXIT_OK


@_env.action(
    "update",
    "build environments again, from newer packages if there are any",
    "If an update fails, the environment stays as it is, and the exit code is 1.",
    cli.operand("[BUILT ...]", "a name or a reference; or all", dest="names"),
    _NO_WAIT,
    cli.as_json("an array of objects"),
)
def _update(options: Namespace) -> int:
    with Client() as client:
        before = {row.reference: row.path for row in client.builds.list_all()}
        with environments.BuildProgressLine() as progress:
            rows = client.builds.update(
                [environments.absolute(name) for name in options.names],
                wait=not options.no_wait,
                on_progress=progress.show,
            )
    return _tell(rows, options, lambda row: environments.updated(row, before.get(row.reference)))


def _tell(rows: Sequence[BuiltRow], options: Namespace, words: Callable[[BuiltRow], str]) -> int:
    """Say what came of builds; the exit code."""
    if options.json and options.action != "use":
        terminal.out_json(rows if options.action == "update" else rows[0])
    for row in rows:
        if row.going_on:
            name = formats.visible(row.name)
            terminal.note(f"{name} {_LEFT}; `nsm env log -f {name}` shows how")
        elif row.state == "failed":
            terminal.note(formats.error(row.error or "its build failed", row.hint or ""))
        elif not options.json:
            terminal.out(words(row))
    if any(row.state == "failed" for row in rows):
        return cli.EXIT_FAILED
    waited = any(row.going_on for row in rows) and not options.no_wait
    return cli.EXIT_INTERRUPTED if waited else cli.EXIT_OK


@_env.action(
    "preload",
    "import Python modules before sessions start",
    _EPILOG_OF_PRELOAD,
    cli.operand("ENV", "its name"),
    cli.operand("MODULE ...", "such as pandas", dest="modules"),
    cli.flag("--remove", "stop importing these"),
    cli.as_json("an object"),
)
def _preload(options: Namespace) -> int:
    with Client() as client:
        report = client.builds.preload(
            options.env, [word.strip(",") for word in options.modules], remove=options.remove
        )
    terminal.answer(options, report, lambda: environments.preloads(report))
    for module, why in report.failed.items():
        terminal.note(formats.visible(f"not preloaded: {module}: {why}"))
    return cli.EXIT_FAILED if report.failed else cli.EXIT_OK


@_env.action(
    "found",
    "list the environments and locks that lie in the project, such as .venv or uv.lock",
    "Only reads files: no program of the project runs.",
    _PROJECT,
    cli.as_json("an array of objects"),
)
def _found(options: Namespace) -> None:
    with Client() as client:
        rows = ProjectEnvironments(client, _project(options)).find()
    terminal.answer(options, rows, lambda: environments.found_table(rows, terminal.width()))


@_env.action(
    "use",
    "let clients of the project use its .venv, node_modules or lock",
    _EPILOG_OF_USE,
    cli.operand(
        "PATH",
        "a .venv, a node_modules, or a list of packages such as uv.lock, requirements.txt, "
        "pyproject.toml, package-lock.json or environment.yml; relative to the project",
    ),
    cli.value("--name NEW", "name to use instead of one made from PATH"),
    cli.flag("--forget", "stop using it; PATH may be its name"),
    _PROJECT,
    _INTERPRETERS,
    _ALLOW_BUILDS,
    _given("--extra NAME", "of a Python project: an extra, besides what its tool installs"),
    _given("--group NAME", "of a Python project: a further group of dependencies"),
    _NO_WAIT,
    cli.as_json("the environment"),
)
def _use(options: Namespace) -> int:
    with Client() as client:
        of_project = ProjectEnvironments(client, _project(options))
        if options.forget:
            name = of_project.forget(options.path)
            terminal.answer(options, {"name": name}, lambda: f"{name} is not used any more")
            return cli.EXIT_OK
        with environments.BuildProgressLine() as progress:
            row = of_project.use(
                options.path,
                name=options.name,
                interpreter=options.interpreter,
                allow_builds=options.allow_builds,
                extras=options.extra or (),
                groups=options.group or (),
                wait=not options.no_wait,
                on_progress=progress.show,
            )
    if row.build is None:
        terminal.answer(options, row, lambda: environments.used(row))
        return cli.EXIT_OK
    if options.json:
        terminal.out_json(row)
    return _tell([row.build], options, lambda _: environments.used(row))


def _project(options: Namespace) -> str:
    path = project_of(options.project or DEFAULT).path
    if path is None:
        raise BadProjectError(f"{why_no_project()}.")
    return path


@_env.action(
    "gc",
    "remove environments of packages that are not in use",
    "Those of config.toml, of `nsm env add` and of live sessions are in use.",
    cli.flag("--dry-run", "only say which"),
    cli.as_json("an object with their directories and the size of their files"),
)
def _gc(options: Namespace) -> None:
    with Client() as client:
        report = client.builds.gc(dry_run=options.dry_run)
    would = "would remove" if options.dry_run else "removed"
    freed = formats.memory(report.freed_bytes)
    lines = [f"{would} {formats.visible(path)}" for path in report.removed]
    terminal.answer(
        options,
        report,
        lambda: "\n".join([*lines, freed]) if lines else "There is nothing to remove.",
    )


@_env.action(
    "log",
    "show the output of an environment's last build",
    "",
    cli.operand("BUILT", "a name, or a reference", dest="name"),
    cli.flag("-f --follow", "follow until the build ends, or until Ctrl-C (exit code 0)"),
    cli.as_json("an object with the environment and the log"),
)
def _log(options: Namespace) -> None:
    pieces: list[str] = []

    def show(text: str) -> None:
        pieces.append(text)
        if options.follow and not options.json:
            sys.stdout.write(environments.visible_log(text))
            sys.stdout.flush()

    with Client() as client:
        name = environments.absolute(options.name)
        row = client.builds.log(name, show, follow=options.follow)
    if options.json:
        terminal.out_json({"environment": row, "log": "".join(pieces)})
    elif not pieces:
        terminal.note(f"nothing was built of {formats.visible(row.name)} yet")
    elif not options.follow:
        if row.cause:
            terminal.note(f"its build failed: {formats.visible(row.cause)}")
        # A log of 4 MiB at most: why comes before it.
        sys.stdout.write(environments.visible_log("".join(pieces)))
