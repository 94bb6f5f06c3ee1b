"""Classifies hosts: this machine, or a network; valid, or not."""

MAX_NAME = 253  # characters of a name (RFC 1035, as text)
MAX_LABEL = 63  # of what stands between its dots


def why_no_host(host: str) -> str:
    """Return why `host` (no brackets) is neither an address nor a valid name; empty if it is one.

    A resolver or the TLS engine raises what no caller foresees for the rest.
    """
    import ipaddress  # a verb that starts no daemon does without

    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return "it is not an IPv6 address"
        return ""
    name = host.removesuffix(".")
    if len(name) > MAX_NAME:
        return f"the name has more than {MAX_NAME} characters"
    for label in name.split("."):
        if not 1 <= len(label) <= MAX_LABEL:
            return f"each part between dots must have 1 to {MAX_LABEL} characters"
        if not (label.isascii() and label.replace("-", "").replace("_", "").isalnum()):
            return "a name can only contain letters, digits, hyphens and dots"
    return ""


def for_resolver(host: str) -> str | bytes:
    """Return a host for `getaddrinfo`: as bytes if it is ASCII, since text costs tables of all characters."""
    return host.encode() if host.isascii() else host


def is_loopback(host: str) -> bool:
    """Return True for `localhost` and loopback addresses; other names are not looked up."""
    import ipaddress  # a verb that starts no daemon does without

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
