"""OpenAI-compatible servers as engines."""

from fineflow.backends.openai_server.engine import OpenAIServerEngine as OpenAIServerEngine
