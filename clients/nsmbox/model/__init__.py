"""Values: a plan of a box, and the settings of all boxes.

plan        mounts, variables, network, limits, command; frozen, no I/O
settings    `[box]` of the configuration
"""
