"""Sentences about missing packages: the environments that have them, and how the user adds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nsmd.denials.evidence import Kind
from nsmd.denials.naming import names
from nsmd.model.values import Environment

_MODULES: Mapping[str, str] = {
    "beautifulsoup4": "bs4",
    "opencv-python": "cv2",
    "pillow": "PIL",
    "python-dateutil": "dateutil",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
"""Modules of packages with another name."""

KNOWN = frozenset(
    "PIL attr boto3 bs4 cv2 dateutil django dotenv fastapi flask httpx jax keras lxml matplotlib "
    "networkx nltk numpy openai openpyxl pandas plotly polars psutil pyarrow pydantic pytest "
    "requests rich scipy seaborn sklearn spacy sqlalchemy statsmodels sympy tabulate tensorflow "
    "torch tqdm transformers yaml".split()
)
"""Modules that are not part of Python and that much code imports. Another missing module may belong
to the project and be elsewhere.
"""


def clauses(
    subjects: Mapping[Kind, Sequence[str]],
    environments: Sequence[Environment],
    *,
    installable: bool,
) -> list[str]:
    """Make the clauses of the note; none if there may be another cause.

    Args:
        subjects: subjects of the evidence.
        environments: environments that the client can use.
        installable: code may get it over a network.
    """
    modules = [_module_of(name) for name in subjects.get("index", ())]
    modules += [
        name for name in subjects.get("module", ()) if name in KNOWN or _with(name, environments)
    ]
    wanted = list(dict.fromkeys(name for name in modules if name))
    said = [clause for name in wanted if (clause := _where(name, environments))]
    if installable:
        return said if "module" in subjects else []
    how: list[str] = []
    if "index" in subjects or wanted:
        how.append(
            "the user can add an environment that has packages: `interpreter` in config.toml names "
            "a virtual environment's Python"
        )
        if wanted and environments and not said:
            said.append(f"no environment is known to have {names(wanted)}")
    if "npm" in subjects or "node-module" in subjects:
        how.append("the user can install packages in the project's node_modules")
    if "apt" in subjects:
        how.append("the user can install packages on the host, whose /usr is shown here")
    return ["network is off, so nothing can be installed", *said, *how] if how else []


def _where(name: str, environments: Sequence[Environment]) -> str:
    having = _with(name, environments)
    if not having:
        return ""
    return f"{name} is in environment{'s' if len(having) > 1 else ''} {names(having)}"


def _with(name: str, environments: Sequence[Environment]) -> list[str]:
    return [
        environment.name
        for environment in environments
        if environment.problem is None and environment.has_module(name)
    ]


def _module_of(package: str) -> str:
    package = package.lower()
    return _MODULES.get(package, package.replace("-", "_"))
