"""`python -m meshd`."""

from meshd.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
