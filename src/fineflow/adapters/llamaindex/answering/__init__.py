"""Answers from nodes: synthesizers, and the query engines that are made of others."""
