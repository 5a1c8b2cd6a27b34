# The Python that nsm runs on: nixpkgs' own, with what nixpkgs does not carry in time.
#
# Type: { lib, python } -> python
#
# The one place where versions are overridden. Nothing is, where nixpkgs has a version that will do;
# else the package is the pure-Python wheel that constraints.txt pins, with the version and hash of
# that file, so that nsm is built here from the very files that it is tested with elsewhere.
#
# flake.lock pins nixpkgs c59305ba, nixos-unstable of 2026-10-01; revision and hash are the same in the
# public files of two unrelated projects. Nothing was built from it here: there was no binary cache.
# Of it is known: mcp 1.29, and mcp_2 2.2 (needed: 2.3, so the wheels); httpx2 2.3 in May 2026 (needed:
# 2.10); cbor2 6.1.3, pydantic 2.13.4, bubblewrap 0.11.2 or newer (nixpkgs' own will do).
{ lib, python }:
let
  # constraints.txt as { NAME = { version, sha256 } }. Packages with one file only, which are the
  # pure-Python ones: others have a file for each Python and processor.
  pins =
    let
      onOneLine = builtins.replaceStrings [ " \\\n    " ] [ " " ] (
        builtins.readFile ../constraints.txt
      );
      pinOf =
        line:
        let
          found = builtins.match "([a-z0-9-]+)==([^ ;]+) --hash=sha256:([0-9a-f]{64})" line;
        in
        lib.optional (found != null) {
          name = builtins.elemAt found 0;
          value = {
            version = builtins.elemAt found 1;
            sha256 = builtins.elemAt found 2;
          };
        };
    in
    builtins.listToAttrs (builtins.concatMap pinOf (lib.splitString "\n" onOneLine));

  overrides =
    final: previous:
    let
      # The wheel of constraints.txt. Its dependencies are checked against its metadata by the hook
      # that nixpkgs runs for every Python package.
      wheel =
        name: dependencies:
        let
          pin = pins.${name} or (throw "nsm: constraints.txt pins no pure-Python wheel of ${name}.");
          module = builtins.replaceStrings [ "-" ] [ "_" ] name;
        in
        final.buildPythonPackage {
          pname = name;
          inherit (pin) version;
          format = "wheel";
          src = final.fetchPypi {
            pname = module;
            inherit (pin) version sha256;
            format = "wheel";
            dist = "py3";
            python = "py3";
          };
          inherit dependencies;
          pythonImportsCheck = [ module ];
        };

      carries =
        name: minimum:
        previous ? ${name} && lib.versionAtLeast previous.${name}.version minimum;

      # mcp-types has mcp's version, httpcore2 has httpx2's: each pair is taken from one place.
      carriesMcp = carries "mcp" "2.3";
      carriesHttpx2 = carries "httpx2" "2.10";
    in
    # The names must not depend on what nixpkgs carries: that would be asked of this very set.
    {
      mcp =
        if carriesMcp then
          previous.mcp
        else
          wheel "mcp" [
            final.anyio
            final.cryptography # of pyjwt[crypto]
            final.httpx2
            final.jsonschema
            final.mcp-types
            final.opentelemetry-api
            final.pydantic
            final.pyjwt
            final.python-multipart
            final.sse-starlette
            final.starlette
            final.typing-extensions
            final.typing-inspection
            final.uvicorn
          ];

      mcp-types =
        if carriesMcp then
          previous.mcp-types
        else
          wheel "mcp-types" [
            final.pydantic
            final.typing-extensions
          ];

      httpx2 =
        if carriesHttpx2 then
          previous.httpx2
        else
          wheel "httpx2" [
            final.anyio
            final.httpcore2
            final.idna
            final.truststore
            final.typing-extensions
          ];

      httpcore2 =
        if carriesHttpx2 then
          previous.httpcore2
        else
          wheel "httpcore2" [
            final.h11
            final.truststore
          ];
    };

  patched = python.override (arguments: {
    self = patched;
    packageOverrides = lib.composeExtensions (arguments.packageOverrides or (_: _: { })) overrides;
  });
in
patched
