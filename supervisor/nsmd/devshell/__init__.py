"""A project's own development shell as environment `project`, equal to what `nix develop` gives.

script      what `nix print-dev-env --json` says, and the steps of Bash that make it so; pure
files       which files decide what a flake's shell is, and whether they have changed
evaluation  asks nix, and keeps its answer and a garbage-collector root
keeper      the shells of all projects: evaluated in the background, asked for in calls
"""
