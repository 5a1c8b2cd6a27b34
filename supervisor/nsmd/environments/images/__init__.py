"""Environments whose files are a container image's. No module imports a later one.

tree           the directory that layers are unpacked in; nothing leads out of it
layers         one layer of an image: its bytes, checked, as files of the tree
image_files    an image in an OCI layout or in an archive of `docker save`: manifest, configuration
unpack         the program that unpacks an image, in a jail
host_python    the host's Python with its own loader and libraries, for jails without them
registry       images of registries, fetched by skopeo
image_install  the installer's way from a reference to an environment
image_root     the environment of an unpacked image

The first four are the program in the jail: standard library only, Python 3.9 or newer.
"""
