"""Kinds of boxes: a TOML file each, and the module that reads them.

profile     reads one, and adds what `_common.toml` has for all
"""
