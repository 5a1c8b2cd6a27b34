"""A request and facts become a plan, and the plan becomes what starts it. Pure.

planning    from request and facts to a plan
rules       a plan as the agent in the box reads it
git_command git, which says why it cannot write its configuration
bwrap       a plan as arguments of bwrap
seatbelt    a plan as a profile for macOS
dryrun      a plan as a command to read and paste
"""
