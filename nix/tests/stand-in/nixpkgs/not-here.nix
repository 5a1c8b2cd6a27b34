# What can be evaluated and is not here to be built: it takes the real nixpkgs.
pkgs:
let
  notHere =
    name: attributes:
    pkgs.runCommand name attributes ''
      echo "The stand-in for nixpkgs cannot build ${name}: it takes the real nixpkgs." >&2
      exit 1
    '';
in
{
  gnumake = notHere "gnumake-not-here" { };
  nixfmt = notHere "nixfmt-not-here" { };
  nixfmt-tree = notHere "nixfmt-tree-not-here" { };

  # What it says can be looked at; it takes NixOS to evaluate its machines, and KVM to run.
  testers.runNixOSTest = test: notHere "vm-test-run-${test.name}" { passthru = { inherit test; }; };
}
