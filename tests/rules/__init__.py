"""Rules for the source of meshd that no linter checks; applied by tests/unit/test_architecture.py."""
