"""Variables of the supervisor that sessions inherit."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsmd.host.locales import passed_on

ZONES = ("Europe/Berlin", "UTC", "Etc/GMT+5")
LOCALES = ("de_DE.utf8", "ca_ES.utf8@valencia")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A host with some locales and time zones."""
    base = tmp_path_factory.mktemp("host")
    for zone in ZONES:
        path = base / "usr/share/zoneinfo" / zone
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"TZif")
    for name in LOCALES:
        (base / "usr/lib/locale" / name).mkdir(parents=True)
    (base / "usr/share/secret").write_text("x")
    return str(base)


def passed(root: str, name: str, value: str) -> bool:
    found = passed_on({name: value, "SECRET": "canary"}, root=root, is_locale=lambda _: True)
    assert found in ((), ((name, value),))
    return bool(found)


@pytest.mark.parametrize(
    ("name", "value", "passes"),
    [
        *((name, "de_DE.UTF-8", True) for name in ("LANG", "LC_ALL", "LC_TIME")),
        *(("LANG", value, True) for value in ("de_DE.utf8", "ca_ES.UTF-8@valencia")),
        # Those of jails, of other characters, and those that are not there.
        *(
            ("LANG", value, False)
            for value in ("", "C", "de_DE", "de_DE.ISO-8859-1", "fr_FR.UTF-8")
        ),
        ("LANG", "../../share/secret.UTF-8", False),
        ("LANG", "de_DE.UTF-8\nX=1", False),
        ("LANG", "/etc.UTF-8", False),
        *(("TZ", zone, True) for zone in (*ZONES, ":Europe/Berlin", "UTC0")),
        ("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", True),
        *(("TZ", value, False) for value in ("", "Europe", "Europe/Nowhere", "../secret")),
        ("TZ", "/etc/localtime", False),
        ("LC_CTYPE", "C.UTF-8", False),
        ("TZ", "../../etc/passwd", False),
        *((name, "de_DE.UTF-8", False) for name in ("LANGUAGE", "LC_", "LC_ANYTHING", "LOCPATH")),
        *((name, "UTC", False) for name in ("TZDIR", "PATH")),
    ],
)
def test_locales_and_time_zones_that_jails_have_are_passed_on(
    root: str, name: str, value: str, passes: bool
) -> None:
    assert passed(root, name, value) is passes


def test_a_locale_that_the_c_library_lacks_does_not_pass(root: str) -> None:
    assert passed_on({"LANG": "de_DE.UTF-8"}, root=root, is_locale=lambda _: False) == ()
    assert passed_on({"LANG": "xx_XX.UTF-8", "TZ": "/none"}) == ()


@pytest.mark.parametrize(
    ("link", "name", "zone"),
    [
        ("/usr/share/zoneinfo/Europe/Berlin", "UTC", "Europe/Berlin"),
        ("../usr/share/zoneinfo/Etc/GMT+5", "", "Etc/GMT+5"),
        ("/usr/share/zoneinfo/Europe/Nowhere", "Europe/Berlin", ""),
        ("/usr/share/zoneinfo/Etc/UTC", "Europe/Berlin", ""),
        ("", "Europe/Berlin\n", "Europe/Berlin"),
        ("", "Etc/UTC\n", ""),
        ("", "", ""),
    ],
)
def test_the_hosts_time_zone(tmp_path: Path, root: str, link: str, name: str, zone: str) -> None:
    (tmp_path / "usr").symlink_to(f"{root}/usr")
    (tmp_path / "etc").mkdir()
    if link:
        (tmp_path / "etc/localtime").symlink_to(link)
    (tmp_path / "etc/timezone").write_text(name)
    found = dict(passed_on({}, root=str(tmp_path)))
    assert found == ({"TZ": zone} if zone else {})
    assert passed_on({"TZ": "UTC0"}, root=str(tmp_path)) == (("TZ", "UTC0"),)
