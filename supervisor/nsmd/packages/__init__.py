"""Environments that nsm makes from packages and container images. No module imports a later one.

The installer makes one environment: it starts uv, npm or py-rattler in a jail, whose only way out
is nsm's proxy, which leads to the user's indexes.

text_files           text files that somebody else has written, and YAML
index_values         the user's indexes, their URLs, and local directories of theirs
index_configuration  the user's configuration of pip, uv and npm, and netrc
index_reading        all indexes of the user, from that configuration and conda's
jail_start           the first program in the jail of a build
store                environments on disk, by the hash of what they are made of
sharing              files that environments share, as hard links
locks                exact versions and hashes, as requirements files
requirements         wanted packages of requirements files and pyproject.toml, and projects' locks
conda_program        a program in the jail: py-rattler resolves and links packages of conda
build_jail           the jail of a build, and reasons why programs in it failed
build_network        hosts that a build may reach, and the user's settings for its programs
language_packages    wanted packages of one language, and the program that installs them
python_packages      environments of Python packages, by uv
node_packages        environments of Node packages, by npm, and their locks
conda_packages       environments of conda packages, by py-rattler, and lists and locks of them
images               environments from container images
installer            the installer: resolves, installs, publishes
package_builds       builds for the supervisor: what is asked for, said and made
"""
