"""The harness: applications of ``benchmarks.apps`` under several schemes, on the same engines, with their limits."""
