"""LangChain components on engines in this process: ordinary components that also work in chains never optimized."""
