"""Models from other members of the mesh, and for them: who has which, and their bytes, piece by piece.

A running node tells members that may use the mesh which models it has, and gives them pieces of these
(`give.py`). `offers.py` asks members, and decides which of their models a name means. `fetch.py` fetches
pieces from all members that have a content at once, for whole models and headers (`pull.py`) and for the
weights of a load (`fetch_weights.py`). `part_files.py` handles the disk. Tests: tests/unit/library/members.
"""
