"""Adapters: sandboxes of nsm where a framework expects one of its own.

Each module needs its framework, and is imported by whoever uses both (docs/how-to/integrations.md):

    sandboxes.py    `LazySandbox`, what all of them have in common
    background.py   thread in which trio runs, for callers in threads, asyncio and trio
"""
