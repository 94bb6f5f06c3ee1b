"""Run a role as a service: `files.py` has the text of units, `control.py` asks systemd or launchd."""
