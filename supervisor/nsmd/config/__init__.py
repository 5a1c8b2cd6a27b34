"""config.toml: read, checked, and applied again when it changes.

config_file  read the file and check it
reload       application of a changed file in a running supervisor
"""
