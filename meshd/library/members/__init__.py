"""Models from other members of the mesh, and for them: who has which, and their bytes, piece by piece.

A running node tells members that may use the mesh which models it has (`offered_models.py`,
`tell_models.py`) and gives them pieces of these (`give_pieces.py`). `pull_model.py` takes a model from all
members that have it at once; what it decides stands in `offers.py` (whom to ask) and `piece_plan.py` (which
piece from whom), both pure; `part_files.py` is its disk. Tests: tests/unit/library/members.
"""
