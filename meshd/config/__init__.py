"""Configuration: option, then environment, then TOML file, then default, made into one frozen tree."""

from meshd.config.check import check_node, check_serve, check_worker, read_join
from meshd.config.load import LoadedConfig, Setting, load
from meshd.config.tree import (
    DEFAULT_API_PORT,
    DEFAULT_MESH_PORT,
    DEFAULT_STUN,
    MESH_PORT_TRIES,
    ClientConfig,
    Config,
    HostPort,
    LinksConfig,
    LogConfig,
    NodeConfig,
    Paths,
    ServeConfig,
    WorkerConfig,
    find_cache,
    find_home,
    home_here,
)

__all__ = [
    "DEFAULT_API_PORT",
    "DEFAULT_MESH_PORT",
    "DEFAULT_STUN",
    "MESH_PORT_TRIES",
    "ClientConfig",
    "Config",
    "HostPort",
    "LinksConfig",
    "LoadedConfig",
    "LogConfig",
    "NodeConfig",
    "Paths",
    "ServeConfig",
    "Setting",
    "WorkerConfig",
    "check_node",
    "check_serve",
    "check_worker",
    "find_cache",
    "find_home",
    "home_here",
    "load",
    "read_join",
]
