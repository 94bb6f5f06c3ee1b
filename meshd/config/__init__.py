"""Configuration: option, then environment, then TOML file, then default, made into one frozen tree."""

from meshd.config.forms import HostPort
from meshd.config.load import EffectiveValue, LoadedConfig, load
from meshd.config.serve_settings import (
    DEFAULT_API_PORT,
    ClientConfig,
    ModelConfig,
    ModelSettings,
    ServeConfig,
)
from meshd.config.tree import (
    DEFAULT_MESH_PORT,
    DEFAULT_STUN,
    MESH_PORT_TRIES,
    Config,
    LinksConfig,
    LogConfig,
    NodeConfig,
    Paths,
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
    "EffectiveValue",
    "HostPort",
    "LinksConfig",
    "LoadedConfig",
    "LogConfig",
    "ModelConfig",
    "ModelSettings",
    "NodeConfig",
    "Paths",
    "ServeConfig",
    "WorkerConfig",
    "find_cache",
    "find_home",
    "home_here",
    "load",
]
