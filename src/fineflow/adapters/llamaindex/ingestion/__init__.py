"""Ingestion of documents: pipelines, indexes, and vectors that are computed ahead of stock."""
