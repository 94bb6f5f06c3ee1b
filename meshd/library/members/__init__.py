"""Models from other members of the mesh, and for them: who has which, and their bytes, piece by piece.

A running node tells members that may use the mesh which models it has, and gives them pieces of these
(`give.py`). `fetch.py` takes pieces from all members that have a content at once, for whole models
(`pull_model.py`), headers (`pull_header.py`) and the weights of a load (`fetch_weights.py`). What is decided
stands in `offers.py` (whom to ask) and `piece_plan.py` (which piece from whom), both pure; `part_files.py` is
its disk. Tests: tests/unit/library/members.
"""
