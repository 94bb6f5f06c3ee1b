"""The roles that a node can have, by the verb that starts it."""

from collections.abc import Mapping

from meshd.daemon.role_kind import RoleKind
from meshd.daemon.serve_role import ServeRole
from meshd.daemon.worker_role import WorkerRole
from meshd.identity.record import HEAD_ROLE, WORKER_ROLE

ROLES: Mapping[str, RoleKind] = {WORKER_ROLE: WorkerRole(), HEAD_ROLE: ServeRole()}
