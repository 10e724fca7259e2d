"""The pictures of the README and the documentation, each made by a command: ``make pictures``."""
