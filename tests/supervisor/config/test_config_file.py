"""Mistakes in config_file.toml are named in terms of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsmd.config import config_file
from nsmd.model.settings import HIDDEN, EnvironmentSettings, network_rule
from nsmd.model.values import NetworkMode, NetworkRule

MISTAKES: list[tuple[str, str]] = [
    (
        "[defaults]\ntimeout_second = 3",
        "defaults.timeout_second: unknown key; did you mean 'timeout_seconds'?",
    ),
    ("[sesion]\n", "sesion: unknown key; did you mean 'session'?"),
    (
        "[project.inherit_env]\nvar = []",
        "project.inherit_env.var: unknown key; did you mean 'vars'?",
    ),
    ("[project.inherit_env]\nvars = ['LD_PRELOAD']", "LD_PRELOAD is for the jail to decide"),
    (
        "[project]\nuse_flake = true\n[environments.project]\npreset = 'bash'",
        "environments.project: with project.use_flake",
    ),
    (
        "[defaults]\nmemory_mb = '512'",
        "defaults.memory_mb: found '512', expected a whole number from 1",
    ),
    (
        "[defaults]\ntimeout_seconds = 0",
        "defaults.timeout_seconds: found 0, expected a number more than 0",
    ),
    ("[defaults]\ntimeout_seconds = nan", "defaults.timeout_seconds: found nan"),
    ("[defaults]\njail_uid = 0", "defaults.jail_uid: found 0, expected a whole number from 1"),
    ("[environments]\npython = 3", "environments.python: found 3, expected a table"),
    (
        "[environments.py]\npreset = 'ruby'",
        "environments.py.preset: found 'ruby', expected 'python' or 'bash' or 'node'",
    ),
    ("[environments.data]\n", "environments.data: has neither preset nor flake"),
    (
        '[environments.data]\npreset = "python"\nflake = "github:me/envs#data"\n',
        "environments.data: has preset and flake. Remove one",
    ),
    ('[environments.data]\nflake = "./envs#data"\n', "its path is not absolute"),
    ("[environments.PY]\npreset = 'python'", "environments.'PY': a name is"),
    ("[environments.python]\ninterpreter = 'python3.12'", "expected an absolute path"),
    (
        "[hosts.big]\nproject = 'git'",
        'expected "path", "copy" or "none"; nsm no longer pushes commits to hosts',
    ),
    ("[project]\nmode = 'rw'", "project.mode: found 'rw', expected 'readonly'"),
    (
        "[environments.node]\nnetwork = true",
        'environments.node.network: found True, expected "off"',
    ),
    ("[environments.node]\nnetwork = 'on'", "environments.node.network: found 'on', expected"),
    (
        "[environments.node]\nnetwork = { allow = [], deny = [] }",
        'expected "off", "full" or a list of at most 256 hosts',
    ),
    (
        f"[environments.node]\nnetwork = {{ allow = {['a.org'] * 257} }}",
        "environments.node.network: found a list of 257, expected",
    ),
    ("[environments.python.env]\n'A B' = ''", "environments.python.env: 'A B' is not the name"),
    ('[environments.python.env]\nA = "x\\u0000"', "environments.python.env.A: has a NUL character"),
    (f"[environments.python.env]\nA = '{'x' * 98304}'", "env: has 98306 bytes, expected at most"),
    ("[project]\npath = ''", "project.path: found '', expected the path of a directory"),
    ("[defaults]\nbackend = 'microvm'", "defaults.backend: found 'microvm', expected 'jail'"),
    ('[network]\nupstream = "http://eve:pw@p.test:1"', 'network.upstream: expected "http://HOST:'),
    ('[network]\nupstream = "socks5://p.test:1"', 'network.upstream: expected "http://HOST:'),
    ('[network]\nupstream_login = "pw"', "network.upstream_login: "),
    ('[packages]\nhosts = ["*"]', "packages.hosts: '*' is every host, expected the names of"),
    ('[packages]\nhosts = ["host.nsm.internal"]', "is for sessions, expected localhost"),
    ('[packages]\nhosts = ["https://a.org/x"]', "is a URL or a path, expected a host"),
    ("secrets = 'hush'", "secrets: found something of type str, expected a map"),
    ("[secrets.x]\nfrom = ['hush']", "secrets.x.from: found something of type list, expected text"),
    ("[secrets.x]\nfrom = 'file: /x'", "secrets.x: needs all of from, hosts, as"),
    ("[environments.bash]\nsecrets = 'hush'", "bash.secrets: found something of type str"),
    ("[box]\nenv = 'TOKEN=hush'", "box.env: found something of type str, expected a list"),
    ("[environments.'a.b']\nenv = 'hush'", "env: found something of type str, expected a map"),
    (
        "[project]\npath = 2020-01-01",
        "project.path: found datetime.date(2020, 1, 1), expected text",
    ),
    ("a = [", "is not valid TOML"),
    ("x = " + "9" * 5000, "is not valid TOML"),
    ('[environments.data]\nflake = "-f"\n', "begins with '-'"),
    ("[environments.python.env]\nLD_AUDIT = '/x'", "env: LD_AUDIT is for the jail to decide"),
    ('[packages]\nhosts = ["0.0.0.0/0"]', "packages.hosts: '0.0.0.0/0' is every host"),
    ("[secrets]\nx = 'hush'", "secrets.x: found something of type str, expected a table"),
    ("[box]\nsecrets = [{ A = 'hush' }]", "box.secrets[0]: found something of type dict"),
    ("x = " + "[" * 5000, "is not valid TOML"),
    (
        "[defaults]\nmemory_mb = 0x" + "f" * 5000,
        "memory_mb: found a number of 20000 bits, expected",
    ),
]


@pytest.mark.parametrize(("text", "complaint"), MISTAKES)
def test_a_mistake_is_named(text: str, complaint: str) -> None:
    with pytest.raises(config_file.ConfigError) as caught:
        config_file.parse(text.encode(), "/etc/config.toml")
    message = str(caught.value)
    assert complaint in message
    assert "hush" not in message
    assert message.startswith("/etc/config.toml: ")


@pytest.mark.parametrize(
    "network",
    [
        "3",
        "'on'",
        "{}",
        "[1]",
        "{ allow = [1] }",
        "{ allow = [], x = 1 }",
        "{ allow = [], intercept = 3 }",
    ],
)
def test_a_key_of_two_kinds_is_complained_about_once(network: str) -> None:
    with pytest.raises(config_file.ConfigError) as caught:
        config_file.parse(f"[environments.node]\nnetwork = {network}".encode(), "config.toml")
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("spelling", "mode", "hosts"),
    [
        ('"off"', "off", ()),
        ('"full"', "full", ()),
        ('["a.org", "*.b.org:443"]', "allow", ("a.org", "*.b.org:443")),
        ("[]", "allow", ()),
        ('"none"', "off", ()),
        ('"host"', "full", ()),
        ('{ allow = ["a.org"] }', "allow", ("a.org",)),
        ('{ allow = ["a.org"], intercept = false }', "allow", ("a.org",)),
        (
            '{ allow = ["a.org", "GET https://b.org/x/*"], intercept = true }',
            "allow",
            ("* https://a.org/*", "GET https://b.org/x/*"),
        ),
    ],
)
def test_networks_have_one_spelling_and_older_ones_are_read(
    spelling: str, mode: NetworkMode, hosts: tuple[str, ...]
) -> None:
    settings = config_file.parse(
        f"[environments.node]\nnetwork = {spelling}\n[http]\nnetwork = {spelling}\n"
        f"[box]\nnet = {spelling}".encode(),
        "c",
    )
    rule = NetworkRule(mode=mode, allow=hosts)
    assert settings.environments["node"].network_rule == settings.http.network_rule == rule
    assert network_rule(settings.box.net) == rule
    assert "{" not in config_file.render(settings)


def test_a_tilde_is_the_home_directory_wherever_a_path_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    settings = config_file.parse(
        b"""
        [environments.science]
        preset = "python"
        interpreter = "~/venv/bin/python"
        [environments.data]
        flake = "path:~/envs#data"
        [project]
        path = "~"
        [http]
        listen = "unix:~/nsm.sock"
        project = "~/shop"
        [box]
        show = ["~/data"]
        """,
        "c",
    )
    assert settings.environments["science"].interpreter == "/home/ada/venv/bin/python"
    assert settings.environments["data"].flake == "path:/home/ada/envs#data"
    assert settings.project.path == "/home/ada"
    assert (settings.http.listen, settings.http.project) == (
        "unix:/home/ada/nsm.sock",
        "/home/ada/shop",
    )


def test_mistakes_of_all_kinds_are_named_at_once() -> None:
    """Unknown keys, wrong types, and what no type can express; and nothing that follows of them."""
    text = """
[http]
listening = "127.0.0.1:1"
listen = "here"

[environments.own]
prset = "python"

[environments.other]
interpreter = "python3"
timeout_seconds = "long"

[box]
secrets = ["token", "none"]

[secrets.token]
hosts = 5
"""
    with pytest.raises(config_file.ConfigError) as caught:
        config_file.parse(text.encode(), "c.toml")
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [
        "http.listening",
        "environments.own.prset",
        "environments.other.timeout_seconds",
        "secrets.token.hosts",
        "environments.other.interpreter",
        "box.secrets",
        "http.listen",
    ]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(config_file.ConfigError, match="cannot be read: Is a directory"):
        config_file.load(str(tmp_path))


def test_a_file_without_end(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"#" * (config_file.MAX_CONFIG_BYTES + 1))
    with pytest.raises(config_file.ConfigError, match="is larger than"):
        config_file.load(str(file))


def test_settings_that_are_shown_can_be_read_again() -> None:
    text = b"""
    [defaults]
    timeout_seconds = 5
    [environments.python]
    interpreter = "/opt/python/bin/python3"
    [environments.data]
    preset = "python"
    memory_mb = 2048
    [project]
    use_flake = true
    [project.inherit_env]
    vars = ["TOKEN", "_x1"]
    """
    settings = config_file.parse(text, "c")
    assert settings.defaults.timeout_seconds == 5
    assert settings.environments["data"] == EnvironmentSettings(preset="python", memory_mb=2048)
    assert settings.project.inherit_env.vars == ("TOKEN", "_x1")
    shown = config_file.render(settings)
    assert config_file.parse(shown.encode(), "shown") == settings


@pytest.mark.parametrize("wrong", ["12345678", "['secret-value']", "{ secret-value = 1 }"])
def test_values_of_variables_are_never_shown(wrong: str) -> None:
    given = "[environments.python.env]\nTOKEN = 'secret-value'\n"
    settings = config_file.parse(given.encode(), "c")
    assert settings.environments["python"].env == {"TOKEN": "secret-value"}
    for shown in (config_file.render(settings), str(config_file.dump(settings)), repr(settings)):
        assert "secret-value" not in shown
    assert f'TOKEN = "{HIDDEN}"' in config_file.render(settings)
    with pytest.raises(config_file.ConfigError) as error:
        config_file.parse(f"[environments.python.env]\nTOKEN = {wrong}\n".encode(), "c")
    assert "12345678" not in str(error.value)
    assert "secret-value" not in str(error.value)
    assert "environments.python.env.TOKEN" in str(error.value)


@pytest.mark.parametrize(
    ("path", "meant"),
    [(".", "/etc/nsm"), ("src/", "/etc/nsm/src"), ("../x", "/etc/x"), ("/a/b/", "/a/b")],
)
def test_a_project_is_found_from_the_file_that_names_it(path: str, meant: str) -> None:
    """Paths are resolved the way `lib.fromToml` does it."""
    settings = config_file.parse(f'[project]\npath = "{path}"'.encode(), "/etc/nsm/config.toml")
    assert settings.project.path == meant


def test_keys_for_other_programs_are_accepted_and_named(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        """
        [daemon]
        anything = 1
        [backends.jail]
        anything = 1
        [defaults]
        backend = "jail"
        [environments.python]
        backend = "jail"
        [environments.data]
        flake = "nixpkgs#duckdb"
        interpreter = "bash -s"
        """
    )
    settings = config_file.load(str(file))
    assert set(settings.environments) == {"python", "data"}
    assert config_file.unused_keys(str(file)) == [
        "backends",
        "daemon",
        "defaults.backend",
        "environments.python.backend",
        "environments.data.interpreter",
    ]
    assert config_file.unused_keys(str(tmp_path / "none")) == []


def test_the_example_is_valid_and_all_of_it_is_used() -> None:
    example = Path(__file__).resolve().parents[3] / "config.example.toml"
    settings = config_file.load(str(example))
    assert settings.environments["scratch"].preset == "bash"
    assert config_file.unused_keys(str(example)) == []
