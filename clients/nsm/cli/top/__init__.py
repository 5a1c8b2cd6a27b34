"""The screen of `nsm top`.

figures.py    what changed between two looks: processor shares, rates; order and choice; pure
table.py      lines as text that fits a terminal; pure
board.py      what is shown, and what keys do to it; pure
batch.py      the same without a terminal: text or JSON, as often as asked
program.py    the composition root at a terminal: draws, asks, acts, reconnects
"""
