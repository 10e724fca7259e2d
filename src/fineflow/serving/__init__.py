"""The HTTP front end: ``fineflow serve MODULE:NAME``. FastAPI and uvicorn come with the extra ``serve``.

settings   what the operator allows, and every limit       settings.py
object     runnables, LlamaIndex engines: one interface    served.py, runnables.py, engines.py
calls      places, time limits, disconnects, the drain     gate.py, guard.py, calls.py
routes     LangServe's, OpenAI's, Parrot's, documents      routes.py, chat.py, semantic.py, documents.py, page.py
"""

from fineflow.serving.app import create_app
from fineflow.serving.settings import ServerSettings

__all__ = ["ServerSettings", "create_app"]
