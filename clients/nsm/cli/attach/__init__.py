"""The screen of `nsm attach`.

program.py    the composition root: connects, runs, ends; keeps the history of typed code
feed.py       the transcript as it comes: whose code runs, what is to be shown of it
screen.py     writing above the prompt, or where there is none; the terminal's mode and signals
prompt.py     the line editor: what it looks like, what keys do, what Enter and Tab ask
whole_input.py   whether what was typed is whole, and how the next line is indented

The prompt is prompt_toolkit's, which runs on asyncio only; the connection is `nsm.AsyncClient`,
which runs there, too. So this screen and `nsm top` connect again as every other client does. The
standard library's `readline` can't draw above its prompt, and a full-screen program would take the
terminal's scrollback away.
"""
