"""Handlers for apps that run as they are: they measure calls, and predict what ``optimize`` would make of them."""
