"""A project's own development shell as environment `project`, equal to `nix develop`.

script          what `nix print-dev-env --json` says, and the Bash that makes it so (pure)
files           which files decide what a flake's shell is, and whether they have changed
evaluation      ask nix, and keep its answer until the flake changes
project_shells  the shells of all projects: evaluated in the background
"""
