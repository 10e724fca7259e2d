"""fineflow beside other libraries that make graphs of LangGraph faster: seconds, and what each keeps of stock."""
