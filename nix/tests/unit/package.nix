# Tests of ../../package.nix and ../../python-packages.nix: which packages nsm is made of.
{ pkgs }:
let
  inherit (pkgs) lib;

  # A nixpkgs with packages in other versions, or none.
  pythonWith =
    versions:
    pkgs.python313.override {
      packageOverrides =
        _: previous: lib.mapAttrs (name: version: previous.${name} // { inherit version; }) versions;
    };
  patched =
    versions:
    import ../../python-packages.nix {
      inherit lib;
      python = pythonWith versions;
    };
  package =
    versions:
    import ../../package.nix {
      inherit lib;
      python = patched versions;
    };
  versionsOf = python: names: map (name: python.pkgs.${name}.version) names;
  fourNames = [
    "mcp"
    "mcp-types"
    "httpx2"
    "httpcore2"
  ];
  own = {
    mcp = "2.9.0";
    mcp-types = "2.9.0";
    httpx2 = "2.99.0";
    httpcore2 = "2.99.0";
  };
in
{
  testTakesWhatNixpkgsHas = {
    expr = versionsOf (patched own) fourNames;
    expected = [
      "2.9.0"
      "2.9.0"
      "2.99.0"
      "2.99.0"
    ];
  };
  testOtherwiseTheWheelsOfConstraintsTxt = {
    expr =
      let
        python = patched (
          own
          // {
            mcp = "2.2.0";
            httpx2 = "2.3.0";
          }
        );
        text = builtins.readFile ../../../constraints.txt;
        pinned = name: lib.hasInfix "${name}==${python.pkgs.${name}.version} " text;
      in
      {
        pins = map pinned fourNames;
        hashes = map (name: lib.hasInfix python.pkgs.${name}.src.sha256 text) fourNames;
        wheels = map (name: python.pkgs.${name}.src.pname) fourNames;
        needs = map (each: each.pname) python.pkgs.httpcore2.dependencies;
      };
    expected = {
      pins = [
        true
        true
        true
        true
      ];
      hashes = [
        true
        true
        true
        true
      ];
      wheels = [
        "mcp"
        "mcp_types"
        "httpx2"
        "httpcore2"
      ];
      needs = [
        "h11"
        "truststore"
      ];
    };
  };
  testDependenciesAreThoseOfThePyproject = {
    expr = map (each: each.pname) (package { }).dependencies;
    expected = [
      "anyio"
      "cbor2"
      "cloudpickle"
      "cryptography"
      "h11"
      "idna"
      "mcp"
      "packaging"
      "prometheus-client"
      "prompt-toolkit"
      "pydantic"
      "python-multipart"
      "pyyaml"
      "sse-starlette"
      "trio"
      "uv"
    ];
  };
  testKnowsItsCommit = {
    expr =
      map (arguments: (import ../../package.nix arguments).drvAttrs.NSM_COMMIT or null)
        [
          {
            inherit lib;
            python = patched { };
            commit = "1a2b3c4d1a2b3c4d1a2b3c4d1a2b3c4d1a2b3c4d";
          }
          {
            inherit lib;
            python = patched { };
          }
        ];
    expected = [
      "1a2b3c4d1a2b3c4d1a2b3c4d1a2b3c4d1a2b3c4d"
      null
    ];
  };
  testTooOld = {
    expr = (package { cbor2 = "5.9.0"; }).drvPath;
    expectedError.msg = "nsm: this nixpkgs has cbor2 5[.]9[.]0; pyproject[.]toml asks for cbor2>=6,<7[.] Use the nixpkgs that nsm's flake[.]lock pins";
  };
  testTooNew = {
    expr = (package { trio = "0.35.0"; prompt-toolkit = "4.0"; }).drvPath;
    expectedError.msg = "nsm: this nixpkgs has prompt-toolkit 4[.]0; pyproject[.]toml asks for prompt-toolkit>=";
  };
}
