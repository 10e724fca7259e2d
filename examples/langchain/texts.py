"""Passages that the examples search."""

PASSAGES = [
    "Task decomposition splits a task into steps that an agent can do.",
    "A planner writes the steps of a task, an executor does them.",
    "Long-term memory of an agent is a vector store.",
    "Tools are functions that an agent may call.",
    "Reflection lets an agent correct its steps.",
    "Bread needs flour, water, salt and time.",
]
