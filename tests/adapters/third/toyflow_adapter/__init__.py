"""All that fineflow needs to know of toyflow."""
