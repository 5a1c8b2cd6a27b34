# Tests of ../../lib/mkMetadata.nix.
let
  mkMetadata = import ../../lib/mkMetadata.nix;
  least = {
    name = "x";
    interpreter_type = "bash";
    timeout_seconds = 30;
    memory_mb = 512;
  };
  takes = [
    "policy"
    "variables"
  ];
in
{
  testArtifact = {
    expr = mkMetadata.artifact least;
    expected = least // {
      schema = 1;
      template = 2;
      inherit takes;
    };
  };
  testArtifactWhole = {
    expr = mkMetadata.artifact (
      least
      // {
        description = "d";
        preload = [ "numpy" ];
      }
    );
    expected = least // {
      schema = 1;
      template = 2;
      inherit takes;
      description = "d";
      preload = [ "numpy" ];
    };
  };
  testRegistered = {
    expr = mkMetadata.registered (
      builtins.removeAttrs least [ "name" ]
      // {
        artifact = "/store/x";
        backend = "jail";
      }
    );
    expected = builtins.removeAttrs least [ "name" ] // {
      backend = "jail";
      artifact = "/store/x";
      exec = "/store/x/bin/run";
      session_exec = "/store/x/bin/session-run";
    };
  };
  testRegistry = {
    expr = mkMetadata.registry { environments = { }; };
    expected = {
      environments = { };
    };
  };
}
