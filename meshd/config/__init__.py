"""Configuration: option, then environment, then TOML file, then default, made into one frozen tree."""
