"""A request and facts become a plan, and the plan becomes what starts it. Pure.

planning    from request and facts to a plan
rules       a plan as the agent in the box reads it
bwrap       a plan as arguments of bwrap
"""
