"""Environments that nsm has Nix build. A map; no module imports a later one.

remembered  what outlives the supervisor: a small file
output      what nix says that it built, and whether that is a sandbox
roots       garbage-collector roots: links to what was built
building    one environment: wanted, being built, built; what of it has changed
shelf       what is kept: roots, logs, and what is remembered
builder     one build, from a reference to a sandbox
words       what is said of one, for people and models
workshop    all of them: who wants which, a few builds at once, and what the catalog says
"""
