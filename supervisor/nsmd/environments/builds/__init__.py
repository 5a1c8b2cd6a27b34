"""Environments that nsm builds, with Nix or from packages. No module imports a later one.

output           result of `nix build`, read and checked to be a sandbox
saved_builds     record of the environments, which outlives the supervisor, in a JSON file
build_state      one environment: wanted, being built, built or failed
build_directory  the directory of builds: roots, logs, and the saved file
nix_builds       builds of flakes, by Nix
package_builds   builds from packages, by the installer
build_run        one build, by the method of its kind
names            names of environments: checked, and freed for another one
wording          sentences about one build, for people and models
build_queue      builds that wait and run, a few at once
builder          all builds, a few at once
"""
