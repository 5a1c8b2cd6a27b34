# Tests of ../../registryOf.nix: artifacts as the supervisor is told of them.
{ library }:
let
  read =
    artifacts:
    builtins.fromJSON (builtins.unsafeDiscardStringContext (import ../../registryOf.nix artifacts));
  sandbox =
    arguments:
    library.mkSandbox (
      {
        name = "python";
        interpreter_type = "bash";
        packages = [ ];
      }
      // arguments
    );
in
{
  testEach = {
    expr = builtins.attrNames (read [
      (sandbox { name = "a"; })
      (sandbox { name = "b"; })
    ]).environments;
    expected = [
      "a"
      "b"
    ];
  };
  testLaterOnesWin = {
    expr =
      (read [
        library.presets.python
        (sandbox { timeout_seconds = 7; })
      ]).environments.python.timeout_seconds;
    expected = 7;
  };
  testSomethingElse = {
    expr = read [ { name = "hello-2.12"; } ];
    expectedError.msg = "nsm: hello-2[.]12 is no sandbox made by nsm's lib[.]mkSandbox[.]";
  };
}
