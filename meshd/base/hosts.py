"""What a host is, for all who must not mistake this machine for a network."""


def is_loopback(host: str) -> bool:
    """True for `localhost` and addresses that only this machine reaches; other names are not looked up."""
    import ipaddress  # a verb that starts no daemon does without

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
