"""Environments that nsm makes from packages. No module imports a later one.

The installer, a process of its own, makes one environment: it starts uv, npm or py-rattler in a
jail, whose only way out is nsm's proxy, which leads to the user's indexes.

yaml_files          YAML that somebody else has written
indexes             the user's indexes of packages
jail_start          the first program in the jail of a build
text_files          text files that somebody else has written
locks               exact versions and hashes, as requirements files
requirements        wanted packages, read from requirements files and pyproject.toml
project_locks       locks that a project has itself, such as uv.lock
store               environments on disk, by the hash of what they are made of
sharing             files that environments share, as hard links
node_locks          exact versions and hashes of Node packages, as npm's lock files
conda_locks         exact packages of conda, as their URLs and hashes
conda_lists         lists of conda packages, such as environment.yml
conda_program       a program in the jail: py-rattler resolves and links packages of conda
build_jail          the jail of a build
tools               uv and npm, and their commands
failures            reasons why these failed
build_network       hosts that a build may reach, and the user's settings for its programs
installer_protocol  what the supervisor and the installer say to each other
python_packages     environments of Python packages
node_packages       environments of Node packages
conda_packages      environments of conda packages
installer           the installer: resolves, installs, publishes
installer_run       the supervisor's run of the installer, and what that has made
"""
