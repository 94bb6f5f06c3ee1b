"""A bench of network namespaces: NATs, firewalls and slow lines between real nodes. See README.md here."""
