"""config.toml: read, checked, and applied again when it changes.

secret_tables  the tables of secrets
mistakes       descriptions of mistakes, in terms of the file
config_file    read the file and check it
reload         application of a changed file in a running supervisor
"""
