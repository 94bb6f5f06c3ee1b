"""Models from other members of the mesh, and for them: who has which, and their bytes, piece by piece.

A running node tells members that may use the mesh which models it has, and gives them pieces of these
(`give.py`). `fetch.py` fetches pieces from all members that have a content at once, for whole models
(`pull_model.py`), headers (`pull_header.py`) and the weights of a load (`fetch_weights.py`). The decisions
are in `offers.py` (which members to ask) and `piece_plan.py` (which piece from which member), both pure;
`part_files.py` handles the disk. Tests: tests/unit/library/members.
"""
