"""Contents of an environment, as users write them: packages, images, devices, or a reference to a
flake; pure.

A reference is `REF#ATTRIBUTE`, where REF is a URL (`github:me/envs`, `git+https://...`,
`path:/home/me/envs`), an absolute path, or a name in Nix's registry. Nix judges the rest; this
module only refuses texts that could be taken for something else: an option, several words, a
relative path.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from nsm.dataclass import dataclass
from nsm.wire.errors import BadRequestError
from nsmd.model.names import ENVIRONMENT_NAME

MAX_REFERENCE_CHARS = 2000

_RELATIVE = r"(?:path:|git\+file:(?://)?)?(?:\.{1,2}(?:[/#?]|$)|~)|(?:path|git\+file):(?!/)"
_NAME_ALONE = r"[A-Za-z0-9][\w.-]*"
_EXAMPLES = "`github:OWNER/REPO#NAME` or `path:/DIRECTORY#NAME`"
_NOT_IN_NAMES = r"[^a-z0-9-]+"
_FALLBACK_NAME = "environment"


def check_reference(text: str) -> str:
    """Check a reference, and return it. Raises `BadRequestError`."""
    if re.fullmatch(_NAME_ALONE, text):
        raise BadRequestError(
            f"{text} is a name: what is the environment to be made from?",
            hint=f"`nsm env add {text} --pip PACKAGES`, or --npm, --requirements, --pyproject, "
            f"--package-lock or --image. A reference to a flake is like {_EXAMPLES}.",
        )
    if why := why_no_reference(text):
        raise BadRequestError(
            f"{text!r:.200} is not a reference to a flake: {why}.",
            hint=f"A reference is like {_EXAMPLES}.",
        )
    return text


def why_no_reference(text: str) -> str | None:
    """Return why a reference is invalid; None if it is valid."""
    if not text.partition("#")[0]:
        return "it names no flake"
    if len(text) > MAX_REFERENCE_CHARS:
        return f"it has more than {MAX_REFERENCE_CHARS} characters"
    if text.startswith("-"):
        return "it begins with '-', as options do"
    if not text.isprintable() or " " in text:
        return "it has spaces or control characters (in a path, write them as %20 and so on)"
    if re.match(_RELATIVE, text):
        return "its path is not absolute, and a supervisor serves many directories"
    local = _local(text)
    if local and local[1].keys() - {"dir"}:
        return (
            "only `dir` may come after the `?` of a directory of this machine, whose files nsm "
            f"copies as they are now: leave out {', '.join(sorted(local[1].keys() - {'dir'}))}"
        )
    return None


def split_valid(references: Sequence[str], most: int) -> tuple[list[str], list[str]]:
    """Split references into valid ones to build, and others to report."""
    good = [reference for reference in references if why_no_reference(reference) is None]
    bad = [reference for reference in references if why_no_reference(reference) is not None]
    return good[:most], [*good[most:], *bad][:most]


def local_directory(reference: str) -> str | None:
    """The directory that a reference means with the files that are there now.

    None for other references: of other machines, or of a directory as it is (`path:`), of which
    Nix asks no git.
    """
    local = _local(reference)
    return local and os.path.normpath(os.path.join(local[0], local[1].get("dir", "")))


def _local(reference: str) -> tuple[str, dict[str, str]] | None:
    """The directory and the parameters of a reference for which Nix would ask git here."""
    place, _, query = reference.partition("#")[0].partition("?")
    if not place.startswith("/"):
        url = urlsplit(place)
        if url.scheme != "git+file" or url.netloc:
            return None
        place = unquote(url.path)
    return place, dict(parse_qsl(query, keep_blank_values=True))


def likely_name(reference: str) -> str:
    """Guess the name of a reference's environment, before the build says it."""
    flake, _, attribute = reference.partition("#")
    attribute = attribute.partition("^")[0].strip('"')
    last = attribute.rpartition(".")[2]
    if last in ("", "default"):
        last = re.split(r"[/:]", flake.partition("?")[0].rstrip("/"))[-1]
    name = re.sub(_NOT_IN_NAMES, "-", last.lower()).strip("-")[:64]
    return name if ENVIRONMENT_NAME.fullmatch(name) else _FALLBACK_NAME


def shown_reference(reference: str) -> str:
    """Format a reference for people and models, without a password in its URL."""
    return re.sub(r"//[^/@#?]*@", "//...@", reference)


MAX_PACKAGES = 256
MAX_REQUIREMENT_CHARS = 300
MAX_SHOWN_CHARS = 200

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9._*+!-]+"
_REQUIREMENT = (
    rf"(?P<name>{_NAME})\s*(?:\[\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\])?"
    rf"\s*(?:{_VERSION}(?:\s*,\s*{_VERSION})*)?\s*(?:;\s*(?P<marker>[^\n#]+))?"
)
"""A requirement without a URL (packaging.python.org, dependency specifiers)."""

_NPM_WORD = r"[A-Za-z0-9~][A-Za-z0-9._~-]*"
_NPM_PACKAGE = (
    rf"(?P<name>(?:@{_NPM_WORD}/)?{_NPM_WORD})(?:@(?P<versions>[A-Za-z0-9.*^~<>=|+ _-]+))?"
)
"""A package of npm, with versions or a tag."""


_MODULES: Mapping[str, str] = {
    "beautifulsoup4": "bs4",
    "opencv-python": "cv2",
    "pillow": "PIL",
    "python-dateutil": "dateutil",
    "python-dotenv": "dotenv",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
"""Modules of packages with another name."""

WELL_KNOWN = (
    *("numpy", "pandas", "matplotlib", "scipy", "sklearn", "torch", "requests", "PIL", "yaml"),
    *("bs4", "sympy", "pytest", "boto3", "cv2", "django", "fastapi", "flask", "httpx", "jax"),
    *("keras", "lxml", "networkx", "nltk", "openai", "openpyxl", "plotly", "polars", "psutil"),
    *("pyarrow", "pydantic", "rich", "seaborn", "spacy", "sqlalchemy", "statsmodels", "tabulate"),
    *("tensorflow", "tqdm", "transformers", "dotenv", "dateutil", "attr"),
)
"""Modules that are not part of Python and that much code imports, the most used first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPackages:
    """Packages that an environment should have.

    Attributes:
        included_below: absolute path of the directory in which all files lie that `requirements`
            includes; empty for its own.
        conda: absolute path of a list of conda packages, such as environment.yml; empty for none.
        language: interpreter of an image: ``python``, ``bash`` or ``node``; empty for the first of
            these that it has.
        root: ``overlay`` if sessions may change an image's files, each in an overlay of its own.
        extras, groups: of `project`: further extras, and groups of dependencies.
        allow_builds: packages that are not ready to use are built, which runs their code in the
            build's jail.
        devices: devices of the host that sessions may use, of `nsm env add`; those of config.toml
            are in its own entry.
    """

    pip: tuple[str, ...] = ()
    requirements: str = ""
    included_below: str = ""
    project: str = ""
    npm: tuple[str, ...] = ()
    package_lock: str = ""
    conda: str = ""
    image: str = ""
    language: str = ""
    root: str = ""
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    interpreter: str = ""
    allow_builds: bool = False
    preload: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def preset(self) -> Literal["python", "node"]:
        """Interpreter that they are for."""
        return "node" if self.npm or self.package_lock else "python"

    @property
    def file(self) -> str:
        """Path of the file that names them; empty if there is none."""
        return self.requirements or self.project or self.package_lock or self.conda

    @property
    def text(self) -> str:
        """All of it in one line, for people."""
        parts = (
            ("pip", ", ".join(self.pip)),
            ("requirements", self.requirements),
            ("project", self.project),
            ("extras", ", ".join(self.extras)),
            ("groups", ", ".join(self.groups)),
            ("npm", ", ".join(self.npm)),
            ("package_lock", self.package_lock),
            ("conda", self.conda),
            ("image", self.image),
            ("interpreter", self.language),
            ("root", self.root),
        )
        return "; ".join(f"{key}: {value}" for key, value in parts if value)


def shown(packages: WantedPackages) -> str:
    """Format them for tables and messages."""
    text = packages.text
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


def check_packages(packages: WantedPackages) -> WantedPackages:
    """Check what somebody wants, and return it. Raises `BadRequestError`."""
    if problem := next(why_no_packages(packages), None):
        key, why = problem
        raise BadRequestError(f"`{key}`: {why}.", hint="`nsm env add --help` has examples.")
    return packages


def why_no_packages(packages: WantedPackages) -> Iterator[tuple[str, str]]:
    """Find what is wrong: the key, and a clause that says why."""
    python = packages.pip or packages.requirements or packages.project
    if packages.image or packages.language or packages.root:
        yield from _why_no_image(packages)
    if why := why_no_devices(packages.devices):
        yield "devices", why
    if packages.devices and not packages.text:
        yield (
            "devices",
            "is for packages and images; presets get devices in config.toml, and flakes have none",
        )
    elif not packages.text:
        yield "pip", "it names no package"
    if python and packages.preset == "node":
        yield "npm", "an environment has either Python packages or Node packages"
    if packages.npm and packages.package_lock:
        yield "package_lock", "names all packages, so `npm` cannot add some"
    for key in ("extras", "groups"):
        names: tuple[str, ...] = getattr(packages, key)
        if names and not packages.project:
            yield key, "is for uv.lock and pyproject.toml only"
        for each in names:
            if len(each) > MAX_REQUIREMENT_CHARS or not re.fullmatch(_NAME, each):
                yield key, f"{each!r:.100} is not a name of one"
    for key, why_not in (("pip", why_no_requirement), ("npm", why_no_npm_package)):
        named: tuple[str, ...] = getattr(packages, key)
        if len(named) > MAX_PACKAGES:
            yield key, f"has {len(named)} entries, expected at most {MAX_PACKAGES}"
        for each in named:
            if why := why_not(each):
                yield key, f"{each!r:.100} {why}"
    for key in ("requirements", "project", "package_lock", "conda", "interpreter"):
        path: str = getattr(packages, key)
        if path and not path.startswith("/"):
            yield key, f"found {path!r:.100}, expected an absolute path"
        elif not path.isprintable():
            yield key, f"{path!r:.100} has control characters"
    if packages.preload and (packages.preset == "node" or packages.language in ("bash", "node")):
        yield "preload", "is for Python environments only"
    for module in packages.preload:
        if not all(part.isidentifier() for part in module.split(".")):
            yield "preload", f"{module!r:.100} is not the name of a Python module"


def _why_no_image(packages: WantedPackages) -> Iterator[tuple[str, str]]:
    alone = WantedPackages(
        image=packages.image,
        language=packages.language,
        root=packages.root,
        preload=packages.preload,
        devices=packages.devices,
    )
    if not packages.image:
        yield "language" if packages.language else "root", "is for images only"
    elif packages != alone:
        yield "image", "an environment has either an image or packages"
    else:
        try:
            parse_image(packages.image)
        except ValueError as error:
            yield "image", f"{packages.image!r:.200} {error}"
    if packages.root not in ("", "overlay"):
        yield "root", f"found {packages.root!r:.40}, expected overlay"
    if packages.language not in ("", "python", "bash", "node"):
        yield "language", f"found {packages.language!r:.40}, expected python, bash or node"


def why_no_requirement(text: str) -> str | None:
    """Return why a text is no requirement that nsm passes on; None if it is one."""
    if len(text) > MAX_REQUIREMENT_CHARS:
        return f"has more than {MAX_REQUIREMENT_CHARS} characters"
    if text.startswith("-"):
        return "begins with '-', as options do; a requirements file goes into `requirements`"
    if "@" in text.partition(";")[0]:
        return "names a URL; only packages of an index can be installed"
    if not re.fullmatch(_REQUIREMENT, text.strip()) or not text.isprintable():
        return 'is not a requirement; expected is a name with versions, as in "pandas>=2"'
    return None


def why_no_npm_package(text: str) -> str | None:
    """Return why nsm does not pass a text on to npm as a package; None if it does."""
    if len(text) > MAX_REQUIREMENT_CHARS:
        return f"has more than {MAX_REQUIREMENT_CHARS} characters"
    if ":" in text:
        return "names a URL or another name; only packages of a registry can be installed"
    if not re.fullmatch(_NPM_PACKAGE, text):
        return 'is not an npm package; expected a name with versions, as in "zod@^4"'
    return None


def npm_versions(text: str) -> tuple[str, str]:
    """Split a package of npm into its name and its versions, as in a package.json."""
    match = re.fullmatch(_NPM_PACKAGE, text)
    assert match is not None, "it was checked"
    return match["name"], (match["versions"] or "*").strip() or "*"


def names_of(packages: WantedPackages) -> list[str]:
    """Names of the packages that it names itself, and not in a file."""
    specs = (
        re.match(_REQUIREMENT, each) or re.match(_NPM_PACKAGE, each) for each in _specs(packages)
    )
    return [spec["name"] for spec in specs if spec is not None]


def _specs(packages: WantedPackages) -> tuple[str, ...]:
    return (*packages.pip, *packages.npm)


def module_of(package: str) -> str:
    """Name of the module that a Python package most likely has."""
    package = normal_name(package)
    return _MODULES.get(package, package.replace("-", "_"))


def package_of(module: str) -> str:
    """Name of the package that most likely has a Python module."""
    return next((package for package, name in _MODULES.items() if name == module), module)


def normal_name(name: str) -> str:
    """Normalize a package's name, as indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


MAX_IMAGE_CHARS = 1000

Transport = Literal["docker", "oci", "oci-archive", "docker-archive"]

_REPOSITORY = (
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]+)?(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
"""Name of an image in a registry."""

_IMAGE_EXAMPLES = (
    "`docker://python:3.13-slim`, `oci:/DIRECTORY:TAG`, `oci-archive:/FILE:TAG` or "
    "`docker-archive:/FILE`"
)

_LOCAL: Mapping[str, Transport] = {
    "oci": "oci",
    "oci-archive": "oci-archive",
    "docker-archive": "docker-archive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReference:
    """Place of an image, as skopeo names it (containers-transports(5)).

    Attributes:
        transport: a registry, an OCI layout, an archive of one, or an archive of `docker save`.
        tag: tag in the layout or the archive; empty for the only image there.
        digest: of an image in a registry, if the reference has one; else empty.
    """

    transport: Transport
    place: str
    tag: str = ""
    digest: str = ""

    def pinned(self, digest: str) -> str:
        """The name in a registry of the image with this digest."""
        return f"docker://{self.place}@{digest}"


def parse_image(text: str) -> ImageReference:
    """Parse a reference. Raises `ValueError`."""
    if len(text) > MAX_IMAGE_CHARS or not text.isprintable():
        raise ValueError(f"has control characters or more than {MAX_IMAGE_CHARS} characters")
    if text.startswith("docker://"):
        found = re.fullmatch(_REPOSITORY, text.removeprefix("docker://"))
        if found is None:
            raise ValueError(
                "names no image of a registry; one is like `docker://python:3.13-slim`"
            )
        return ImageReference(
            transport="docker",
            place=found["name"],
            tag=found["tag"] or "",
            digest=found["digest"] or "",
        )
    name, colon, rest = text.partition(":")
    place, _, tag = rest.partition(":")
    if not colon or (transport := _LOCAL.get(name)) is None:
        raise ValueError(f"is not an image; expected {_IMAGE_EXAMPLES}")
    if not place.startswith("/"):
        raise ValueError("has a path that is not absolute")
    return ImageReference(transport=transport, place=place, tag=tag)


DEVICE_WORDS = ('"nvidia"', '"nvidia:NUMBER"', '"amd"', '"dri"')
"""Words that `devices` may hold, for people."""

MAX_DEVICES = 64
"""Largest number of these words for one environment."""

_DEVICE_WORD = r"nvidia(?::(?:0|[1-9][0-9]{0,2}))?|amd|dri"


def why_no_devices(words: Sequence[str]) -> str | None:
    """Return why these words name no devices; None if they do."""
    if len(words) > MAX_DEVICES:
        return f"has {len(words)} entries, expected at most {MAX_DEVICES}"
    for word in words:
        if re.fullmatch(_DEVICE_WORD, word) is None:
            return f"found {word!r:.80}, allowed: {', '.join(DEVICE_WORDS)}"
    kinds = [word.partition(":")[0] for word in words]
    if "nvidia" in words and kinds.count("nvidia") > 1:
        return 'has "nvidia", which is every NVIDIA GPU, and the number of one as well. Remove one'
    return None
