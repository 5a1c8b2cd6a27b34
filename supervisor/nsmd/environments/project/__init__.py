"""Environments that lie in projects: found by reading files, used once a person agrees.
No module imports a later one.

safe_files           files of a project, opened without following links
reading              what a project's `.venv` or `node_modules` is, and whether it has changed
package_lists        lists of packages, such as uv.lock, and nsm's copies of them
agreements           what people agreed to use, kept in a file
description          environments, as sessions get them
agreed               one environment in use: whether its files have changed
pythons              the Pythons that environments were made with, asked once
rows                 what lies in a project, for people
environment_manager  the environments of all projects, for the catalog
"""
