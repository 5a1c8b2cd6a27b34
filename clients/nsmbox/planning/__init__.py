"""A request and facts become a plan, and the plan becomes what starts it. Pure.

planning    from request and facts to a plan
bwrap       a plan as arguments of bwrap
seatbelt    a plan as a profile for macOS
dryrun      a plan as a command to read and paste
"""
