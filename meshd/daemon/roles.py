"""The roles that a node can have, by the verb that starts it."""

from collections.abc import Mapping

from meshd.daemon.client_role import ClientRole
from meshd.daemon.role_kind import RoleKind
from meshd.daemon.serve_role import ServeRole
from meshd.daemon.worker_role import WorkerRole
from meshd.identity.role_names import CLIENT_ROLE, HEAD_ROLE, WORKER_ROLE

ROLES: Mapping[str, RoleKind] = {
    WORKER_ROLE: WorkerRole(),
    HEAD_ROLE: ServeRole(),
    CLIENT_ROLE: ClientRole(),
}
