"""Lists and locks of conda packages, as projects have them, and hostile ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsmd.packages import conda_packages
from nsmd.packages.conda_packages import PLATFORM, CondaLock, CondaWanted, read
from nsmd.packages.locks import LockError
from nsmd.packages.text_files import YamlError, parse_yaml

BASE = "https://conda.anaconda.org/conda-forge"
URL = f"{BASE}/{PLATFORM}/numpy-2.1.0-py312_0.conda"
HASH = "ab" * 32


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def why_not(folder: Path, name: str, text: str) -> str:
    with pytest.raises(LockError) as caught:
        read(written(folder, name, text))
    return str(caught.value)


def test_an_environment_yml_is_read(tmp_path: Path) -> None:
    text = (
        "name: science  # comment\nchannels:\n- conda-forge\n- nodefaults\ndependencies:\n"
        "- python=3.10\n- numpy>=1.20,<3\n- bioconda::samtools=1.19\n- 'scipy 1.*'\n- pip\n"
        '- "libblas=*=*openblas"\nprefix: /home/me/envs/science\n'
    )
    specs = ("python=3.10", "numpy>=1.20,<3", "bioconda::samtools=1.19", "scipy 1.*", "pip")
    assert read(written(tmp_path, "environment.yml", text)) == CondaWanted(
        channels=("conda-forge", "nodefaults", "bioconda"), specs=(*specs, "libblas=*=*openblas")
    )


def test_a_pixi_toml_is_read(tmp_path: Path) -> None:
    text = (
        '[workspace]\nchannels = ["conda-forge", {channel = "pytorch", priority = 1}]\n'
        '[dependencies]\npython = "3.12.*"\nnumpy = ">=2,<3"\nzlib = "*"\nexact = "1.2"\n'
        'mkl = {version = ">=1", build = "x*", channel = "pytorch"}\n'
        '[target.linux.dependencies]\nzlib = "1.3.*"\n[pypi-dependencies]\nme = {path = "."}\n'
    )
    assert read(written(tmp_path, "pixi.toml", text)) == CondaWanted(
        channels=("conda-forge", "pytorch"),
        specs=(
            *("python 3.12.*", "numpy >=2,<3", "zlib 1.3.*", "exact 1.2"),
            'pytorch::mkl >=1[build="x*"]',
        ),
    )
    assert "PyPI" in why_not(tmp_path, "pixi.toml", text + 'requests = "*"\n')


def test_a_pixi_lock_is_read(tmp_path: Path) -> None:
    text = (
        "version: 6\nenvironments:\n  default:\n    channels:\n    - url: https://x.y/\n"
        f"    packages:\n      {PLATFORM}:\n      - conda: {URL}\n      - pypi: ./\n"
        f"      osx-arm64:\n      - conda: {BASE}/osx-arm64/numpy-2.1.0-py312_0.conda\n"
        f"packages:\n- conda: {URL}\n  sha256: {HASH}\n- pypi: ./\n  name: me\n"
    )
    found = read(written(tmp_path, "pixi.lock", text))
    assert isinstance(found, CondaLock)
    assert found.body == f"{URL}#sha256:{HASH}\n"
    assert found.left_out == ("./",)
    (tmp_path / "pixi.toml").write_text("hostile")
    assert read(str(tmp_path / "pixi.toml")) == found, "the lock says all"
    assert "no hash" in why_not(tmp_path, "pixi.lock", text.replace("sha256", "md5"))
    other = text.replace("pypi: ./", "pypi: https://files.example/requests-2.whl")
    assert "packages of PyPI, too (requests-2.whl)" in why_not(tmp_path, "pixi.lock", other)


def test_a_lock_of_conda_lock_is_read(tmp_path: Path) -> None:
    row = (
        "- name: numpy\n  version: 2.1.0\n  manager: conda\n  platform: {platform}\n  url: {url}\n"
        "  hash:\n    md5: abc\n    sha256: {hash}\n  category: {category}\n"
    )
    mine = row.format(platform=PLATFORM, url=URL, hash=HASH, category="main")
    other = row.format(platform="win-64", url="https://x/win-64/a-1-0.conda", hash="x", category="")
    docs = row.format(platform=PLATFORM, url="https://x", hash="x", category="docs")
    text = f"version: 1\nmetadata: {{}}\npackage:\n{mine}{other}{docs}"
    found = read(written(tmp_path, "conda-lock.yml", text))
    assert isinstance(found, CondaLock)
    assert found.body == f"{URL}#sha256:{HASH}\n"
    pip = text.replace("manager: conda", "manager: pip")
    assert "packages of PyPI, too (numpy)" in why_not(tmp_path, "conda-lock.yml", pip)
    assert "format" in why_not(tmp_path, "conda-lock.yml", text.replace("version: 1\n", ""))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///etc/linux-64/a-1-0.conda", "not the URL"),
        (f"{BASE}/../x/noarch/a-1-0.conda", "not the URL"),
        (f"{BASE}/noarch/a-1-0.conda?x", "not the URL"),
        (f"{BASE}/noarch/a-1-0.exe", "not the URL"),
        (f"{BASE}/win-64/a-1-0.conda", f"this machine is {PLATFORM}"),
    ],
)
def test_other_urls_are_refused(url: str, words: str) -> None:
    with pytest.raises(LockError, match=words):
        conda_packages.pin(url, HASH)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [x]\nb: [*a, *a]", "anchor in line 1"),
        ("<<: {a: b}\n<<: {c: d}", "twice"),
        ("[" * 100_000, "nested more than"),
        ("- " * 100_000 + "x", "nested more than"),
        ("a: b\n---\nc: d", "2 YAML documents"),
        ("", "0 YAML documents"),
        ("a: [b", "not valid YAML in line"),
        ("a: \x00", "not valid YAML"),
        ("? [a]\n: b", "not text"),
        ("{a: b, a: c}", "twice"),
        ("%YAML 9.9\n---\na", "not valid YAML"),
    ],
)
def test_hostile_yaml_is_refused(text: str, words: str) -> None:
    with pytest.raises(YamlError, match=words):
        parse_yaml(text)
