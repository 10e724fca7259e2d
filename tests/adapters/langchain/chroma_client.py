"""One Chroma client for all tests of the process: Chroma refuses a second one in memory with other settings."""

from __future__ import annotations

import chromadb
from chromadb.config import Settings

CLIENT = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
