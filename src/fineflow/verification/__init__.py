"""Verification: some calls are run again on stock afterwards, and the answers are compared."""
