"""The screen of `nsm top`.

board.py      what is shown of the sessions, in which order, and what keys do to it; pure
batch.py      the same without a terminal: text or JSON, as often as asked
program.py    the composition root at a terminal: draws, asks, acts, reconnects
"""
