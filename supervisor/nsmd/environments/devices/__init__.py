"""Devices of the host in the jails of an environment whose user gave it some. All functions block.

nodes      device nodes of GPUs, and what the kernel says of them, below the host's root directory
equipment  an environment with its devices and the libraries of their driver

A driver is a large part of the kernel, which the filter can't look into, and nothing that an
ordinary user has limits a GPU's memory or time. So only the user gives devices, in `config.toml` or
by `env_add`. If one is missing, the environment is unavailable, with the reason: programs such as
torch would use the processor in silence. CUDA_VISIBLE_DEVICES is no limit, since code can change
it; device nodes are one. A template shows the devices, for its forks to have, and must not open
them.
"""
