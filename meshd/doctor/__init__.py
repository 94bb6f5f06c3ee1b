"""Check this machine for all that keeps a node from working, mend what is safe to mend, and report.

`kinds.py` and `gpu_kinds.py` have the kinds of findings and their words. `settings.py`, `folders.py`,
`machine.py`, `network.py`, `programs.py`, and `services.py`, which has kinds of its own, look for them;
`examine.py` runs them all within bounds of time, and mends.
"""
