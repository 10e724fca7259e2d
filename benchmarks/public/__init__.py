"""Applications of public code, and structures taken from it: stock against optimized, in virtual time."""
