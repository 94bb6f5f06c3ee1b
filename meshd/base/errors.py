"""Errors of meshd: what went wrong, and what the user can do next.

`cli/main.py` alone prints them (`error: …`, a blank line, `hint: …`). Local and remote faults have
different types: a LocalProtocolError is a bug of ours, a RemoteProtocolError closes the link.
"""

from typing import ClassVar, Self

BANNED_HINT = (  # for the node that is out
    "to return with its old key, ask the founder to run `meshd unban`; to join with a new key "
    "and a new invite, run `meshd stop` and `meshd leave --new-identity`, then start it with --join INVITE"
)
IN_USE_CODE = "identity_in_use"  # of a refusal: the same node runs elsewhere, and answers
IN_USE_HINT = (
    "stop the daemon on the other machine; if its state directory was copied, run "
    "`meshd leave --new-identity` on one of the two, then join again"
)


class MeshdError(Exception):
    """Base of all errors meshd raises on purpose; `what` is one line, `hint` says what to do next."""

    exit_code: ClassVar[int] = 1
    is_final = False
    """True if every later start would end like this one, until somebody changes something."""

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return self.what

    def final(self) -> Self:
        """Return this error, marked as final."""
        self.is_final = True
        return self

    @property
    def with_hint(self) -> str:
        """`what` and `hint` in one line."""
        return f"{self.what} ({self.hint})" if self.hint else self.what

    def afresh(self) -> Self:
        """Return a copy without a traceback, to raise instead of an error that is kept.

        The traceback of a kept error refers to every frame it passed, and so to the object that keeps it: a
        cycle, which holds its buffers in memory until the garbage collector finds it.
        """
        error = type(self).__new__(type(self), *self.args)
        error.__dict__.update(self.__dict__)
        return error


class UserError(MeshdError):
    """A flag, file, token or environment that cannot be used: shown without a traceback."""


class UsageError(UserError):
    """The command line itself cannot be parsed."""

    exit_code: ClassVar[int] = 2


class LocalProtocolError(MeshdError):
    """Our own code violated the protocol: a bug."""


class RemoteProtocolError(MeshdError):
    """The peer violated the protocol; the link is closed with `code`."""

    def __init__(self, what: str, *, code: str = "protocol", hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.code = code


class Refused(MeshdError):
    """The peer answered with a refusal: `code` is stable, `what` its text, `hint` its remedy."""

    def __init__(self, what: str, *, code: str, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.code = code


class Closed(MeshdError):
    """We closed the object ourselves."""


class Broken(MeshdError):
    """The network or the peer broke the connection."""


class CutOff(Broken):
    """The other machine's kernel closed the connection; its process said no goodbye."""


class EndOfStream(MeshdError):
    """The other side ended the stream cleanly."""


class Busy(MeshdError):
    """Two tasks read, or two tasks write, one stream at once."""
