"""LangChain components on engines in this process: ordinary components, also in chains that were never optimized."""
