"""Links over QUIC. Nothing but engine.py knows the library, which is imported once somebody comes."""

ID_BYTES = 8  # of the connection ids that we choose
