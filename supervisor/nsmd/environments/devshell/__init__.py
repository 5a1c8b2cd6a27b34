"""A project's own development shell as environment `project`, equal to `nix develop`.

script          output of `nix print-dev-env --json`, and the Bash that sets it up (pure)
evaluation      ask Nix, and keep its answer until the flake's files change
project_shells  the shells of all projects: evaluated in the background
"""

NAME = "project"
"""Name of the environment."""
