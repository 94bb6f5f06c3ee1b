"""Check this machine for all that keeps a node from working, mend what is safe to mend, and report.

`kinds.py` and `gpu_kinds.py` have every kind of finding and its words. `settings.py`, `folders.py`,
`installation.py`, `machine.py`, `network.py`, `models.py`, `programs.py` and `node.py` look for them, and
`examine.py` runs them all within bounds of time.
"""
