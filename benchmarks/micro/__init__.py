"""What fineflow itself costs: planning, calls, many queries at once, batching, memory, telemetry; as ratios."""
