# lib.debug and lib.asserts: errors, warnings and unit tests.
rec {
  inherit (builtins) trace tryEval;

  warn = message: builtins.trace "warning: ${message}";
  warnIf = condition: message: if condition then warn message else value: value;
  throwIf = condition: message: if condition then throw message else value: value;
  throwIfNot = condition: throwIf (!condition);
  assertMsg = condition: message: condition || throw message;
  assertOneOf =
    name: value: allowed:
    assertMsg (builtins.elem value allowed)
      "${name} must be one of ${builtins.toJSON allowed}, but is: ${builtins.toJSON value}";

  # The tests whose name begins with "test" that fail, in the form of nixpkgs.
  runTests =
    tests:
    builtins.concatMap (
      name:
      let
        test = tests.${name};
      in
      if builtins.substring 0 4 name == "test" && test.expr != test.expected then
        [
          {
            inherit name;
            inherit (test) expected;
            result = test.expr;
          }
        ]
      else
        [ ]
    ) (builtins.attrNames tests);
}
