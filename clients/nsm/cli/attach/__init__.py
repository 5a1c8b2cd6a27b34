"""The screen of `nsm attach`.

program.py    the composition root: connects, runs, ends
feed.py       the transcript as it comes: whose code runs, what is to be shown of it; pure
excerpt.py    others' output in short: whole lines, the beginning and the end; pure
own_execution.py   one execution of the person's own, from Enter to its result
screen.py     writing above the prompt, or where there is none
tty.py        the terminal's mode and its signals
prompt.py     the line editor: what it looks like, what Enter and Tab ask
whole_input.py     whether what was typed is whole, and how the next line is indented
keys.py       what keys do in it
history.py    what was typed in earlier times
"""
