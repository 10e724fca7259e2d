"""A server of the Model Context Protocol. Its tools report each call to a port, and go on when that answers.

Four tools are annotated as read-only, one as writing. Arguments: that port; for HTTP also the transport, and the number
of a socket that listens.
"""

from __future__ import annotations

import socket
import sys

from mcp.server.fastmcp import FastMCP
from mcp.types import ToolAnnotations

server = FastMCP("town", log_level="ERROR")


def add(name: str, *, reads: bool) -> None:
    def call(topic: str) -> str:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as told:
            told.sendall(f"{name} {topic}".encode())
            told.shutdown(socket.SHUT_WR)
            told.recv(16)
        if topic == "nowhere":
            raise ValueError("there is no such place")
        return f"{name} of {topic}"

    server.add_tool(call, name=name, description=f"{name}s", annotations=ToolAnnotations(readOnlyHint=reads))


for each in ("look", "find", "list", "read"):
    add(each, reads=True)
add("write", reads=False)

if __name__ == "__main__":
    if len(sys.argv) > 2:
        import uvicorn

        apps = {"streamable_http": server.streamable_http_app, "sse": server.sse_app}
        uvicorn.run(apps[sys.argv[2]](), fd=int(sys.argv[3]), log_level="error")
    else:
        server.run()
