# nsm as a Python application: its four programs and the modules `nsm`, `nsmbox`, `nsmd`,
# `sandbox_agent`.
# What they need around them is ./wrapper.nix's part.
#
# Type: { lib, python, commit ? "" } -> derivation
#   python : from ./python-packages.nix
#   commit : that it is made from; empty where it is not known
#
# Description and dependencies are those of pyproject.toml, and a nixpkgs that is too old for
# them is an evaluation error that says so.
{
  lib,
  python,
  commit ? "",
}:
let
  inherit ((builtins.fromTOML (builtins.readFile ../pyproject.toml))) project;

  version =
    let
      text = builtins.readFile ../clients/nsm/_version.py;
      found = builtins.match ".*__version__ = \"([^\"]+)\".*" text;
    in
    if found == null then
      throw "nsm: clients/nsm/_version.py has no line `__version__ = \"...\"`."
    else
      builtins.head found;

  # Of "cbor2>=6,<7" the package cbor2, if it is one of those versions.
  dependency =
    requirement:
    let
      found = builtins.match "([a-z0-9-]+)>=([0-9.]+)(,<([0-9.]+))?" requirement;
      name = builtins.elemAt found 0;
      minimum = builtins.elemAt found 1;
      below = builtins.elemAt found 3;
      package =
        python.pkgs.${name} or (throw "nsm: this nixpkgs has no Python package ${name}; ${advice}");
      fits =
        lib.versionAtLeast package.version minimum
        && (below == null || lib.versionOlder package.version below);
      advice = "pyproject.toml asks for ${requirement}. Use the nixpkgs that nsm's flake.lock pins, or a newer one.";
    in
    if found == null then
      throw "nsm: the requirement ${requirement} in pyproject.toml is not understood by nix/package.nix, which knows NAME>=VERSION and NAME>=VERSION,<VERSION."
    else if !fits then
      throw "nsm: this nixpkgs has ${name} ${package.version}; ${advice}"
    else
      package;

  parts = [
    "LICENSE"
    "README.md"
    "agent"
    "clients"
    "hatch_build.py"
    "pyproject.toml"
    "supervisor"
    "systemd"
  ];
in
python.pkgs.buildPythonApplication {
  pname = "nsm"; # the project's own name is the one on PyPI
  inherit version;
  pyproject = true;

  # A change of tests or documentation rebuilds nothing.
  src = builtins.path {
    name = "nsm-source";
    path = ../.;
    filter =
      path: _:
      let
        relative = lib.removePrefix "${toString ../.}/" path;
      in
      builtins.elem (builtins.head (lib.splitString "/" relative)) parts
      && baseNameOf path != "__pycache__";
  };

  build-system = [ python.pkgs.hatchling ];
  dependencies = map dependency project.dependencies;

  # For hatch_build.py: there is no .git here.
  env = lib.optionalAttrs (commit != "") { NSM_COMMIT = commit; };

  # The tests start jails, and Nix' own build sandbox allows no user namespaces in it. Those that
  # run an installed nsm are in nix/tests.
  doCheck = false;
  pythonImportsCheck = [
    "nsm"
    "nsm.cli.entry"
    "nsm.cli.main"
    "nsm.shim"
    "nsmbox.cli.claudebox"
    "nsmd.app.daemon"
    "nsmd.mcp.endpoint"
    "sandbox_agent"
  ];

  passthru = { inherit python; };

  meta = {
    inherit (project) description;
    license = lib.licenses.mit;
    mainProgram = "nsm";
    platforms = (import ./systems.nix).supported;
  };
}
