"""Environments that nsm has Nix build. No module imports a later one.

output        what nix says that it built, and whether that is a sandbox
saved_builds  what outlives the supervisor: a small JSON file
build_state   one environment: wanted, being built, built or failed
build_index   the directory of builds: roots, logs, and the saved file
build_run     one build, from a reference to a sandbox
wording       sentences about one build, for people and models
builder       all builds, a few at once
"""
