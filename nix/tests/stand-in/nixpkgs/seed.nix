# The seed: the host's own programs and libraries, as tools/standin.py collected them. It plays the
# part that bootstrap tools play in nixpkgs, the only binary input. seed.json tells its hash, so a
# seed that is in the store is found by it, and an evaluation never reads it.
#
# Without seed.json everything can be evaluated and nothing can be built.
#
#   { lib, system } -> { path :: derivation, loader :: name, python :: "3.11", missing :: [name],
#                       pythonPackages :: { NAME = version } }
{ lib, system }:
let
  nothing = {
    hash = lib.concatStrings (lib.genList (_: "0") 52);
    loader = "ld-linux-x86-64.so.2";
    python = "3.11";
    missing = [ ];
    python_packages = {
      anyio = "4.16.0";
      cbor2 = "6.2.1";
      cloudpickle = "3.1.2";
      cryptography = "50.0.2";
      h11 = "0.16.0";
      hatchling = "1.33.0";
      httpcore2 = "2.16.2";
      httpx2 = "2.16.2";
      idna = "3.20";
      mcp = "2.3.0";
      mcp-types = "2.3.0";
      packaging = "26.3";
      prometheus-client = "0.26.0";
      prompt-toolkit = "3.0.53";
      pydantic = "2.14.3";
      python-multipart = "0.0.34";
      pyyaml = "6.0.3";
      sse-starlette = "3.7.0";
      trio = "0.35.0";
      uv = "0.13.9";
    };
  };
  info = if builtins.pathExists ./seed.json then lib.importJSON ./seed.json else nothing;
in
{
  inherit (info) loader python missing;
  pythonPackages = info.python_packages;

  path = derivation {
    name = "nsm-host-seed";
    inherit system;
    builder = "/the-seed-is-not-in-this-store/make-it-with/tools/standin.py";
    outputHashMode = "recursive";
    outputHashAlgo = "sha256";
    outputHash = info.hash;
  };
}
