"""Devices of the host in the jails of an environment whose user gave it some. All functions block.

device_host   the host's root directory, as devices and drivers are looked for in it
nodes         device nodes of GPUs
sysfs         the kernel's description of devices, for drivers that read it
libraries     libraries of NVIDIA's driver, wherever they lie
equipment     an environment with its devices, or the reason why it cannot have them
device_watch  devices that come, go or get another driver while the supervisor runs
"""
