# A user's own flake with one environment, as in docs/how-to/nix.md; the tests build it with the stand-ins.
{
  description = "Environments of mine for nsm";

  # Where it comes from is the user's to say; the tests override it.
  inputs.nsm.url = "nsm";

  outputs =
    { nsm, ... }:
    let
      system = "x86_64-linux";
      pkgs = nsm.inputs.nixpkgs.legacyPackages.${system};
    in
    {
      packages.${system}.data-science = nsm.lib.mkSandbox {
        inherit pkgs;
        name = "data-science";
        interpreter_type = "python";
        packages = [
          (pkgs.python3.withPackages (python: [ python.pyyaml ]))
          pkgs.jq
        ];
        description = "Python with PyYAML, and jq";
        timeout_seconds = 60;
        memory_mb = 256;
        preload = [ "yaml" ];
      };
    };
}
