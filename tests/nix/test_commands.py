"""`nsm env` with the real Nix: a user's flake, built and used while the supervisor runs."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import standin
from e2e_support import supervisor

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, pytest.mark.slow]

FLAKE = """
{
  inputs.nixpkgs.url = "path:@nixpkgs@";
  inputs.jail.url = "path:@jail@";
  inputs.index.url = "path:@index@";
  inputs.index.inputs.nixpkgs.follows = "nixpkgs";
  inputs.nsm = {
    url = "path:@nsm@";
    inputs.nixpkgs.follows = "nixpkgs";
    inputs.jail-nix.follows = "jail";
    inputs.nix-index-database.follows = "index";
  };
  outputs =
    { nixpkgs, nsm, ... }:
    let
      system = "x86_64-linux";
      pkgs = nixpkgs.legacyPackages.${system};
      sandbox = more: nsm.lib.mkSandbox ({
        inherit pkgs;
        name = "science";
        interpreter_type = "python";
        packages = [ (pkgs.python3.withPackages (python: [ python.pyyaml ])) ];
      } // more);
      script = name: text: pkgs.runCommand name { } text;
    in
    {
      packages.${system} = {
        science = sandbox { description = "@description@"; };
        ruby = sandbox { interpreter_type = "ruby"; };
        plain = pkgs.jq;
        broken = script "broken" "echo about to fail; exit 7";
      };
    };
}
"""


def write_flake(place: standin.Place, folder: Path, description: str) -> None:
    values = {
        "nixpkgs": place.nixpkgs,
        "jail": place.jail,
        "index": place.nix_index_database,
        "nsm": place.source,
        "description": description,
    }
    text = FLAKE
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    folder.mkdir(exist_ok=True)
    (folder / "flake.nix").write_text(text)


@pytest.fixture(scope="module")
def flake(place: standin.Place) -> Generator[Path]:
    """A user's flake."""
    with tempfile.TemporaryDirectory(prefix="nsm-flake-") as path:
        write_flake(place, Path(path), "the first")
        yield Path(path)


@pytest.fixture(scope="module")
def it(place: standin.Place) -> Generator[Supervisor]:
    """A supervisor in which each test adds something else."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        variables = {n: v for n, v in place.environment.items() if n.startswith(("NIX_", "XDG_C"))}
        with supervisor(Path(path), variables=variables) as it:
            yield it


def test_a_flake_is_added_used_updated_and_removed(
    it: Supervisor, flake: Path, place: standin.Place
) -> None:
    reference = f"path:{flake}#science"
    added = it.run("nsm", "env", "add", reference)
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith(f"science is ready: {place.store}/")
    code = "import yaml; print(yaml.safe_load('[6, 7]'))"
    assert it.run("nsm", "run", "-e", "science", "-s", "a", code).stdout == "[6, 7]\n"
    roots = list((it.directory / "state/nsm/environments/roots").iterdir())
    assert [str(root.resolve()) for root in roots] == [added.stdout.split()[-1]]
    assert it.run("nsm", "env", "log", "science").stdout  # at least what the flake's inputs are
    assert not (flake / "flake.lock").exists()

    write_flake(place, flake, "the second")
    updated = it.run("nsm", "env", "update")
    assert updated.stdout.startswith("science is new: "), updated.stderr
    assert "the second" in it.run("nsm", "env", "show", "science").stdout
    # The session lives on in what it was started in, which stays in the store.
    again = it.run("nsm", "run", "-e", "science", "-s", "a", "print(yaml.safe_load('1'))")
    assert again.stdout == "1\n", again.stderr
    roots = list((it.directory / "state/nsm/environments/roots").iterdir())
    assert len(roots) == 2

    assert it.run("nsm", "kill", "a").returncode == 0
    assert it.run("nsm", "env", "rm", "science").stdout == "removed science\n"
    assert list((it.directory / "state/nsm/environments/roots").iterdir()) == []
    gone = it.run("nsm", "run", "-e", "science", "1")
    assert "science" in gone.stderr
    assert gone.returncode == 125


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("nonesuch", "does not provide attribute"),
        ("ruby", "ruby"),
        ("plain", "yields no sandbox"),
        ("broken", "broken> about to fail"),
    ],
)
def test_environments_that_cannot_be_used_say_why(
    it: Supervisor, flake: Path, attribute: str, said: str
) -> None:
    added = it.run("nsm", "env", "add", f"path:{flake}#{attribute}")
    assert added.returncode == 1
    assert said in added.stderr
    rows = json.loads(it.run("nsm", "env", "builds", "--json").stdout)
    assert [row["state"] for row in rows if row["name"] == attribute] == ["failed"]
    assert said in it.run("nsm", "env", "show", attribute).stdout
    call = it.run("nsm", "run", "-e", attribute, "1")
    assert f"nsm env log {attribute}" in call.stderr
    assert it.run("nsm", "run", "-e", "bash", "echo fine").stdout == "fine\n"
