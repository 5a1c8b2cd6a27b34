"""Transcripts of sessions as whole values: read from files, compared, made into notebooks. Pure.

document.py     `SessionTranscript`: gathered from entries, or read from a file
comparison.py   what a recorded execution and its repetition have in common
notebook.py     a transcript as a Jupyter notebook
"""
