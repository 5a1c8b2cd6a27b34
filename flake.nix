{
  description = "Jailed Python, Bash and Node sessions that are kept ready for coding agents";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
    # By revision: every jail is made by it, so a newer one is read before it is taken.
    jail-nix.url = "sourcehut:~alexdavid/jail.nix/bf9f49c8118e7a77b68a675dbe26e93e91412066";
    # Of claudebox: which package has a program that is missing.
    nix-index-database.url = "github:nix-community/nix-index-database";
    nix-index-database.inputs.nixpkgs.follows = "nixpkgs";
  };

  outputs = inputs: import ./nix/outputs.nix inputs;
}
