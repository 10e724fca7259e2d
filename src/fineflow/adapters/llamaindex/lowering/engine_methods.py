"""Methods that define a ``RetrieverQueryEngine``."""

ENGINE_METHODS = (
    *("query", "aquery", "_query", "_aquery", "retrieve", "aretrieve", "synthesize", "asynthesize"),
    *("_apply_node_postprocessors", "_async_apply_node_postprocessors"),
)
