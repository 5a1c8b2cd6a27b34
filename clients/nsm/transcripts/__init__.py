"""Transcripts of sessions as whole values: read from files, compared, made into notebooks. Pure.

document.py     `SessionTranscript`: gathered from entries, or read from a file
comparison.py   what a recorded execution and its repetition have in common
ignored.py      numbers that differ from run to run: addresses, times, durations
notebook.py     a transcript as a Jupyter notebook
"""
