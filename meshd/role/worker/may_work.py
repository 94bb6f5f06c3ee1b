"""Whether this node may be a worker at all. Pure."""

from meshd.base.errors import UserError
from meshd.identity.membership import Role


def check_may_work(roles: frozenset[Role]) -> None:
    """Raises UserError when a node whose certificate has these roles may not lend devices."""
    if Role.WORK not in roles:
        raise UserError(
            "this node cannot lend its devices: its certificate lacks the role `work`",
            hint="get a token with that role (`meshd invite --role work` on a member that can grant "
            "it), run `meshd "
            "leave` here, then start again with `--join TOKEN`",
        )
