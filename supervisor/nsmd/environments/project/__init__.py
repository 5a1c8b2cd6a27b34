"""Environments that lie in projects: found by reading files, used once a person agrees.
No module imports a later one.

reading              what a project's `.venv` or `node_modules` is, and whether it has changed
package_lists        lists of packages, such as uv.lock, and nsm's copies of them
agreements           what people agreed to use, and the environments that sessions get
environment_manager  the environments of all projects, for the catalog
"""
