"""A project's own development shell as environment `project`, equal to `nix develop`.

script          output of `nix print-dev-env --json`, and the Bash that sets it up (pure)
files           files that decide a flake's shell, and their changes
evaluation      ask Nix, and keep its answer until the flake changes
project_shells  the shells of all projects: evaluated in the background
"""

NAME = "project"
"""Name of the environment."""
