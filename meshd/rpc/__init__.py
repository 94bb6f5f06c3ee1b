"""What the native programs say to each other, as bytes: a firewall, a head's view, a filter between workers;
and a probe of llama.cpp's own rpc-servers. Pure."""
