"""The mesh-server protocol, as far as the daemons of head and worker read it; a filter between workers; and a
probe of llama.cpp's own rpc-servers. Pure.
"""
