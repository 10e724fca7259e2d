"""Parrot's applications and serving experiments, and the scheduling of competing queries (Parrot, section 8)."""
