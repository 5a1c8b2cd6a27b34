"""Environments that nsm builds, with Nix or from packages. No module imports a later one.

building     one environment: who wants it, its name, and what is said of it
build_files  garbage-collector roots, logs, and the record that outlives the supervisor
build_run    one build: of a flake, with Nix, or of packages, by the installer
builder      all builds, a few at once
"""
