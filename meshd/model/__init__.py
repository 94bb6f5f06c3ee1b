"""GGUF headers, memory, and the split of a model over devices. Pure."""
