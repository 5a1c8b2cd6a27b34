"""The question before a box starts, and the answers that are kept.

confirm         asks at the terminal, unless the person has agreed already
agreements      answers that are kept, in `boxes.json`
answers         answers to questions about a directory, in `box-answers.json`
questions       asks them at the terminal
summary         what can be changed, read and not seen
screen          the text that a person sees
readable_names  names that somebody else may have chosen, made safe to read
masking         which values of variables are shown
"""
