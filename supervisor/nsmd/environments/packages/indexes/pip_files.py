"""Configuration files and variables of pip, in its order.

As in pip's `_internal/configuration.py`: files of the machine, of the user, of the interpreter,
then `PIP_CONFIG_FILE`, then variables; and in all of them `[global]` before `[install]`.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping

from nsmd.environments.packages.indexes.files import config_directories, config_home, read_text

_SECTIONS = ("global", "install")
_OTHER_NAMES = {"pypi-url": "index-url", "default-timeout": "timeout"}
"""Names that pip takes as well."""


def read_pip_settings(
    environ: Mapping[str, str], home: str, *, etc: str, prefix: str | None, problems: list[str]
) -> dict[str, str]:
    """Read pip's settings: long names of options, without dashes, and their texts.

    Args:
        prefix: prefix of the interpreter, whose own file counts.
        problems: gets a sentence for each file that cannot be read.
    """
    by_section: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for path in _paths(environ, home, etc, prefix):
        required = path == environ.get("PIP_CONFIG_FILE")
        for section, name, value in _read(path, problems, required=required):
            by_section[section][name] = value
    settings = {**by_section["global"], **by_section["install"]}
    for variable, value in environ.items():
        if variable.startswith("PIP_") and value:
            settings[_normal(variable.removeprefix("PIP_"))] = value
    return settings


def _paths(environ: Mapping[str, str], home: str, etc: str, prefix: str | None) -> list[str]:
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    directories = [os.path.join(each, "pip") for each in config_directories(environ, etc)]
    directories.append(etc)
    if not chosen or not os.path.exists(chosen):
        directories.append(os.path.join(home, ".pip"))
        directories.append(os.path.join(config_home(environ, home), "pip"))
    if prefix:
        directories.append(prefix)
    paths = [os.path.join(directory, "pip.conf") for directory in directories]
    return [*paths, chosen] if chosen else paths


def _read(path: str, problems: list[str], *, required: bool) -> list[tuple[str, str, str]]:
    text = read_text(path, problems, required=required)
    if text is None:
        return []
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
        return [
            (section, _normal(name), value)
            for section in _SECTIONS
            if parser.has_section(section)
            for name, value in parser.items(section)
            if value
        ]
    except configparser.Error:
        # The error's text quotes lines, which may hold a password.
        problems.append(f"{path} is no valid configuration file of pip and was not read")
        return []


def _normal(name: str) -> str:
    name = name.lower().replace("_", "-").removeprefix("--")
    return _OTHER_NAMES.get(name, name)
