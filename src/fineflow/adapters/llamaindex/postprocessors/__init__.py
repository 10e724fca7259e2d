"""Node postprocessors: which are recognised, and what each asks models about nodes."""
