"""Retrievers: what is recognised, how searches run ahead, and the stores and embedding models behind them."""
