"""Environments whose files are a container image's. No module imports a later one.

layers         the layers of an image, and the directory that they are unpacked in
unpack         the program that unpacks an image, in a jail: manifest, configuration, layers
image_root     the environment of an unpacked image, with the host's Python for its agent
image_install  the installer's way from a reference to an environment

The first two are the program in the jail: standard library only, Python 3.9 or newer.
"""
