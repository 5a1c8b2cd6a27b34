# Artifacts as the supervisor is told of them from its start: the text of NIX_SANDBOX_METADATA.
#
# Type: [derivation] -> String
#   from lib.mkSandbox or the presets; later ones replace earlier ones of the same name
artifacts:
let
  mkMetadata = import ./lib/mkMetadata.nix;
  entry =
    artifact:
    let
      metadata =
        artifact.metadata
          or (throw "nsm: ${artifact.name or (toString artifact)} is no sandbox made by nsm's lib.mkSandbox. Link it into the sandbox directory instead.");
    in
    {
      inherit (metadata) name;
      value = mkMetadata.registered {
        inherit artifact;
        inherit (metadata) interpreter_type timeout_seconds memory_mb;
        backend = "jail";
      };
    };
  # Of equal names `listToAttrs` takes the first.
  reversed = builtins.foldl' (sum: artifact: [ (entry artifact) ] ++ sum) [ ] artifacts;
in
builtins.toJSON (mkMetadata.registry { environments = builtins.listToAttrs reversed; })
