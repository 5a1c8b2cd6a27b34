"""The screen of `nsm top`.

table.py      the sessions between two looks: processor shares, rates, order, choice, table; pure
board.py      what is shown, and what keys do to it; pure
batch.py      the same without a terminal: text or JSON, as often as asked
program.py    the composition root at a terminal: draws, asks, acts, reconnects
"""
