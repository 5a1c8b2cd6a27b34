"""Frames between the supervisor and one agent. Everything that comes out of a jail is untrusted.

frames       every frame that an agent may send, with each field checked
file_frames  those about files
job_frames   those about jobs
link         one agent's socket: frames in order, acknowledged, resumed after a restart
requests     questions to an agent beside its executions, and their answers
"""
