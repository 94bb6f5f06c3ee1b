"""GGUF headers, memory, the split of a model over devices. Pure."""
