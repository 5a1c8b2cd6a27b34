{
  description = "What a user of nsm may write; tests/nix/test_users_flake.py builds it";

  # The tests override it.
  inputs.nsm.url = "path:../../..";

  outputs =
    { self, nsm }:
    let
      system = "x86_64-linux";
      pkgs = nsm.inputs.nixpkgs.legacyPackages.${system};
      sandbox =
        arguments:
        nsm.lib.mkSandbox (
          {
            inherit pkgs;
            name = "mine";
            interpreter_type = "python";
            packages = [ pkgs.python3 ];
          }
          // arguments
        );
      fromToml = nsm.lib.fromToml {
        inherit pkgs;
        # Evaluation is pure in a flake: what a file names is an input.
        flakes = {
          nixpkgs = nsm.inputs.nixpkgs;
          "." = self;
        };
      } ./config.toml;
    in
    {
      packages.${system} = {
        data-science = sandbox {
          name = "data-science";
          packages = [
            (pkgs.python3.withPackages (python: [ python.pyyaml ]))
            pkgs.jq
          ];
          timeout_seconds = 90;
          memory_mb = 2048;
          description = "YAML and jq";
          preload = [ "yaml" ];
        };

        # A Bash environment with a Python of its own.
        mixed = sandbox {
          name = "mixed";
          interpreter_type = "bash";
          packages = [ (pkgs.python3.withPackages (python: [ python.pyyaml ])) ];
        };

        tool = pkgs.writeShellScriptBin "tool" "echo made by hand";
        from-toml = fromToml.environments.mine;
        from-toml-argument = fromToml.environments.argument;

        no-python = sandbox { packages = [ pkgs.jq ]; };
        no-node = sandbox {
          interpreter_type = "node";
          packages = [ pkgs.jq ];
        };
        old-python = sandbox {
          packages = [ (pkgs.writeShellScriptBin "python3" "echo none >&2; exit 3") ];
        };
        # Falls back to the bundled one.
        bash-beside-old-python = sandbox {
          interpreter_type = "bash";
          packages = [ (pkgs.writeShellScriptBin "python3" "exit 3") ];
        };
        not-there = sandbox { preload = [ "json.decoder" "nosuch" "json.nosuch" "no.such" ]; };
        # As fromToml without the input that the file names.
        not-passed =
          (nsm.lib.fromToml {
            inherit pkgs;
            flakes.nixpkgs = nsm.inputs.nixpkgs;
          } ./config.toml).environments.mine;
        perl = sandbox { interpreter_type = "perl"; };
      };

      metadata = fromToml.metadata;
      devShells.${system}.default = pkgs.mkShell { name = "theirs"; };
      devShellName = fromToml.devShell.name;
    };
}
