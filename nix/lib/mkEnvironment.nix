# An environment as an artifact: its jailed programs and what is to be known about it.
#
# Type: { pkgs, backends } -> {...} -> derivation
#   out/metadata.json, out/bin/run, out/bin/session-run, out/bin/template-run (docs/reference/formats.md)
#   passthru: packages, env, agent, metadata
#
# `interpreter` and `stdinMode` are how `bin/run` passes code on; by default as its type does.
{ pkgs, backends }:
let
  inherit (pkgs) lib;
  checks = import ./checks.nix;
  interpreters = import ./interpreters.nix;
  mkMetadata = import ./mkMetadata.nix;
  mkAgent = import ./mkAgent.nix { inherit pkgs; };
in
{
  name,
  interpreter_type,
  packages,
  timeout_seconds ? 30,
  memory_mb ? 512,
  description ? null,
  preload ? [ ],
  interpreter ? interpreters.${checks.interpreterType name interpreter_type}.interpreter,
  stdinMode ? interpreters.${checks.interpreterType name interpreter_type}.stdinMode,
  backend ? "jail",
}:
let
  checkedName = checks.name name;
  type = checks.interpreterType checkedName interpreter_type;

  chosen =
    checks.pick backends backend (throw (
      "nsm: environment '${checkedName}': unknown backend ${checks.shown backend}: expected one of "
      + "${checks.listed (builtins.attrNames backends)}."
    ));

  metadata = mkMetadata.artifact {
    name = checkedName;
    interpreter_type = type;
    timeout_seconds = checks.timeout checkedName timeout_seconds;
    memory_mb = checks.memory checkedName memory_mb;
    description = checks.description checkedName description;
    preload = checks.preload checkedName type preload;
  };

  # bash and coreutils follow it on PATH, so that it may have its own.
  env = pkgs.buildEnv {
    name = "nsm-env-${checkedName}";
    paths = checks.packages checkedName packages;
  };

  agent = mkAgent {
    name = checkedName;
    interpreter_type = type;
    preload = metadata.preload or [ ];
    inherit env;
  };

  jailed = {
    name = checkedName;
    inherit
      env
      agent
      interpreter
      stdinMode
      ;
  };
in
pkgs.runCommand "nsm-sandbox-${checkedName}"
  {
    passthru = {
      inherit
        packages
        env
        agent
        metadata
        ;
    };
    metadataJson = builtins.toJSON metadata;
    passAsFile = [ "metadataJson" ];
    nativeBuildInputs = [ pkgs.jq ];
  }
  ''
    mkdir -p $out/bin
    ln -s ${chosen.mkJailedEnv jailed}/bin/run $out/bin/run
    ln -s ${chosen.mkSessionJailedEnv jailed}/bin/session-run $out/bin/session-run
    ln -s ${chosen.mkTemplateJailedEnv jailed}/bin/template-run $out/bin/template-run
    jq --rawfile program ${agent}/program '. + {program: $program}' \
      < "$metadataJsonPath" > $out/metadata.json
  ''
