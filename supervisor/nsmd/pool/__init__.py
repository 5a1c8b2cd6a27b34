"""Spare sessions, kept ready. No module imports a later one.

policy   how many spare sessions to keep: a pure function
memory   the host's memory; end spare and idle sessions when it is short
pool     the spare sessions and their demand, started and ended as the policy says
prewarm  start spare sessions for clients that have just connected
"""
