"""config.toml: read, checked, and applied again when it changes.

secret_tables  the tables of secrets
config_file    read the file, check it, and explain each mistake
reload         application of a changed file in a running supervisor
"""
