"""Taking documents in: pipelines, indexes, and vectors that are made ahead of stock."""
