"""Environments that nsm has Nix build. A map; no module imports a later one.

references  which references nix is asked for, and names for what they give (pure)
remembered  what outlives the supervisor: a small file
output      what nix says that it built, and whether that is a sandbox
roots       garbage-collector roots: links to what was built
building    one environment: wanted, being built, built; what of it has changed
words       what is said of one, for people and models (pure)
workshop    all of them: who wants which, a few builds at once, the catalog's source
"""
