"""Values: a plan of a box, and the settings of all boxes.

limits      limits of a box: their defaults, bounds and names
plan        mounts, variables, network, command; frozen, no I/O
settings    `[box]` of the configuration
"""
