# Tests of ../../systems.nix and what the library says elsewhere.
{ pkgs, jailLib }:
let
  systems = import ../../systems.nix;
  elsewhere = pkgs // {
    stdenv = pkgs.stdenv // {
      hostPlatform = pkgs.stdenv.hostPlatform // {
        system = "aarch64-darwin";
      };
    };
  };
  msg = "nsm: aarch64-darwin is not supported: jails are made of Linux namespaces, so nsm runs on x86_64-linux and aarch64-linux[.]";
in
{
  testSupported = {
    expr = map systems.check systems.supported;
    expected = [
      "x86_64-linux"
      "aarch64-linux"
    ];
  };
  testCheck = {
    expr = systems.check "aarch64-darwin";
    expectedError = { inherit msg; };
  };
  testLibrary = {
    expr =
      (import ../../lib {
        pkgs = elsewhere;
        inherit jailLib;
      }).mkSandbox
        { };
    expectedError = { inherit msg; };
  };
  # It evaluates, so that checks of all systems do.
  testPackage = {
    expr = (import ../../unsupported.nix "aarch64-darwin").system;
    expected = "aarch64-darwin";
  };
}
