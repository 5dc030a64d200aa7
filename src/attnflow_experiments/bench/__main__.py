"""Run the bench: `python -m attnflow_experiments.bench`."""

from attnflow_experiments.bench.command import app

app()
