"""Devices of the host in the jails of an environment whose user gave it some. All functions block.

nodes      device nodes of GPUs, and what the kernel says of them, below the host's root directory
equipment  an environment with its devices and the libraries of their driver
"""
