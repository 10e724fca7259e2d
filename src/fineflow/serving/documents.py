"""Documents for the object: uploads that the served module takes by its function ``ingest``."""

from __future__ import annotations

import asyncio
import inspect
import mimetypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, File, Request, Response, UploadFile

from fineflow.errors import shown
from fineflow.serving.calls import PerRequest, encoded
from fineflow.serving.refusals import Refused
from fineflow.serving.routes import Serving

_LONGEST = 128  # characters of a name
_NOT_IN_NAMES = re.compile(r"[^\w .()+-]")


@dataclass(frozen=True)
class Document:
    """An upload. name: what the client calls it, a label without folders and control characters; it is no path.

    media_type: one of ``ServerSettings.upload_types``, and texts are UTF-8.
    """

    name: str
    content: bytes
    media_type: str

    @property
    def text(self) -> str:
        """The content of a text. Raises UnicodeDecodeError for a PDF and the like."""
        return self.content.decode("utf-8")


def router(serving: Serving, ingest: Callable[..., Any] | None) -> APIRouter:
    """Returns the route ``/documents``. ingest: called with a list of ``Document``; its result is the answer."""
    settings, made = serving.settings, APIRouter()

    async def none() -> None:
        raise Refused(404, "this server takes no documents: the served module has no function named ingest")

    async def upload(request: Request, files: Annotated[list[UploadFile], File()]) -> Response:
        """Hands documents to the served module."""
        assert ingest is not None
        if len(files) > settings.max_files:
            raise Refused(413, f"expected at most {settings.max_files} files in a request, got {len(files)}")
        found = [await _document(each, settings.upload_types) for each in files]
        run = str(uuid4())
        calling = serving.calling(PerRequest(), run)

        async def take() -> Any:
            if inspect.iscoroutinefunction(ingest):
                return await ingest(found)
            return await asyncio.to_thread(ingest, found)

        result = await calling.answer(request, take)
        return Response(encoded({"documents": [each.name for each in found], "result": result}), 201, _JSON)

    if ingest is None:
        made.add_api_route("/documents", none, methods=["POST"], include_in_schema=False)
    else:
        made.add_api_route("/documents", upload, methods=["POST"], response_model=None)
    return made


_JSON = {"Content-Type": "application/json"}


async def _document(file: UploadFile, types: tuple[str, ...]) -> Document:
    """Returns an upload. Raises Refused: 415 for a type that is not taken, or a content that is not of its type."""
    name = label(file.filename or "")
    told = (file.content_type or "").partition(";")[0].strip().lower()
    kind = told if told in types else mimetypes.guess_type(name)[0] or told
    if kind not in types or told not in (*types, "application/octet-stream", ""):
        raise Refused(415, f"{name}: expected one of {', '.join(types)}; got {shown(told or 'no type')}")
    content = await file.read()
    if kind.startswith("text/"):
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused(415, f"{name}: expected {kind} in UTF-8; byte {error.start} is not") from error
        if b"\0" in content:
            raise Refused(415, f"{name}: expected {kind}; it holds a null character")
    if kind == "application/pdf" and not content.startswith(b"%PDF-"):
        raise Refused(415, f"{name}: expected a PDF, which begins with %PDF-")
    return Document(name, content, kind)


def label(name: str) -> str:
    """Returns the last part of a file name, with only letters, digits and harmless signs, and no dot in front."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return _NOT_IN_NAMES.sub("_", last).strip(" .")[-_LONGEST:] or "document"
