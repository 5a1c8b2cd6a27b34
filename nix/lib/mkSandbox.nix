# A sandbox from a list of packages: what users call in their own flakes.
#
# Type: { mkEnvironment } -> { name, interpreter_type, packages, timeout_seconds ? 30,
#         memory_mb ? 512, description ? null, preload ? [ ], backend ? "jail" } -> derivation
#
#   mkSandbox {
#     name = "data-science";
#     interpreter_type = "python"; # or "bash", "node"
#     packages = [ (pkgs.python3.withPackages (python: [ python.pandas ])) ];
#   }
{ mkEnvironment }:
let
  checks = import ./checks.nix;
  wanted = [
    "interpreter_type"
    "name"
    "packages"
  ];
  known = wanted ++ [
    "backend"
    "description"
    "memory_mb"
    "preload"
    "timeout_seconds"
  ];
in
arguments:
let
  name = checks.name (arguments.name or (throw "nsm: mkSandbox: no name is given. Add name = \"...\"."));
  missing = builtins.filter (key: !(arguments ? ${key})) wanted;
  unknown = builtins.filter (key: !(builtins.elem key known)) (builtins.attrNames arguments);
in
if missing != [ ] then
  throw "nsm: environment '${name}': mkSandbox lacks ${checks.listed missing}."
else if unknown != [ ] then
  throw "nsm: environment '${name}': mkSandbox knows no ${checks.listed unknown}: expected only ${checks.listed known}."
else
  mkEnvironment arguments
