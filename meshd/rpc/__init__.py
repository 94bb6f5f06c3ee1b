"""llama.cpp's RPC protocol as bytes: a probe, a firewall, a filter between two rpc-servers. Pure."""
