"""Command line. Subcommands import what they need when they run, so that nothing large is imported before."""

from fineflow.cli.main import main

__all__ = ["main"]
