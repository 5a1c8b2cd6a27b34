# Stand-in for the jail.nix flake, for tests where its tree is not available: the same interface,
# real bwrap scripts, written for nsm. `--override-input jail-nix path:...` puts it in its place.
{
  description = "A stand-in for jail.nix, for tests";

  outputs = _: { lib = import ./lib; };
}
