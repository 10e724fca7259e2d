"""A server that takes one request at a time (429 to others), through a real client that repeats what is refused."""

from __future__ import annotations

import threading
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI

import fineflow
from fineflow.testing.gates import Gate
from fineflow.testing.http import Refusal, Request, Response, ServedInThread


class OneAtATime(ServedInThread):
    """The first request stays until the gate opens."""

    def __init__(self) -> None:
        self.gate, self.busy, self.refused = Gate(), False, 0
        self.refusal = threading.Event()
        super().__init__(self._answer, "one-at-a-time")

    async def _answer(self, request: Request) -> Response:
        body = request.json()
        if self.busy:
            self.refused += 1
            self.refusal.set()
            raise Refusal(429, "one at a time", {"retry-after": "500"})  # a client that obeyed would never end
        self.busy = True
        await self.gate.wait()
        self.busy = False
        message = {"role": "assistant", "content": body["messages"][-1]["content"]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return Response({**head, "choices": [choice]})


def test_one_refusal_and_stock_makes_the_call_after_what_ran_ahead() -> None:
    with OneAtATime() as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        model = ChatOpenAI(base_url=url, api_key="none", model="single", max_retries=2)  # type: ignore[arg-type]
        chain: Any = RunnablePassthrough()
        for key in "abc":
            step = ChatPromptTemplate.from_template(key + " {q}") | model | StrOutputParser()
            chain = chain | RunnablePassthrough.assign(**{key: step})
        app, answers = fineflow.optimize(chain, strict=True), list[Any]()
        calling = threading.Thread(target=lambda: answers.append(app.invoke({"q": 1})), daemon=True)
        calling.start()
        assert server.refusal.wait(10)
        server.gate.open()
        calling.join(10)
    assert answers == [{"q": 1, "a": "a 1", "b": "b 1", "c": "c 1"}]
    assert server.refused <= 2  # both others may have been under way
