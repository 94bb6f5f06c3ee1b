"""A hostile member, relay, router, head or worker against real nodes: generated, mutated, flooding."""
