# The unit tests as a check of the flake: evaluating it runs them, and throws which have failed.
#
# Type: { pkgs, tests } -> derivation
#   tests : { GROUP = { testNAME = { expr; expected; } | { expr; expectedError; } } }
#
# That an error has the right message only a runner outside of Nix can tell: tests/nix does.
{ pkgs, tests }:
let
  inherit (pkgs) lib;

  # Type: attrs -> Bool
  holds =
    test:
    let
      result = builtins.tryEval (
        if test ? expected then test.expr == test.expected else builtins.deepSeq test.expr true
      );
    in
    if test ? expected then result.success && result.value else !result.success;

  failed = lib.concatLists (
    lib.mapAttrsToList (
      group: of:
      map (name: "${group}.${name}") (
        builtins.filter (name: !(holds of.${name})) (builtins.attrNames of)
      )
    ) tests
  );
in
if failed == [ ] then
  pkgs.runCommand "nsm-unit-tests" { } "touch $out"
else
  throw "nsm: unit tests that fail: ${lib.concatStringsSep ", " failed}."
