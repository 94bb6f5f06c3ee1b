"""Write one text file about this node for people who help: what they need, without secrets.

Two layers keep secrets out. `fields.py` lists the fields that are shown; `sections.py` and `logs.py` write
the sections from such fields and from lines that are known. Then `scrub.py` searches the whole text for this
node's secrets, which `secrets.py` finds, in all spellings, and for whatever looks like a secret.
`document.py` puts the parts together.
"""
