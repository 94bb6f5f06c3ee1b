"""What a child reports, line by line (role.interface.Report): the parts of a line. Pure."""


def count_of(text: str) -> int | None:
    """Bytes as a child reports them; None for what is no such number (`isdigit` alone takes `²`)."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None
