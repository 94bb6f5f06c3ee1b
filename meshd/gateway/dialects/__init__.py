"""The dialects of the API: what each reads, and how it is answered. Pure."""
