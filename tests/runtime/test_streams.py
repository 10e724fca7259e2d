"""Streams inside one event loop."""

from __future__ import annotations

import asyncio

import pytest

from fineflow.runtime.call.streams import AHEAD, Stream


async def collect(stream: Stream[int], seen: list[int]) -> None:
    async for item in stream.read():
        seen.append(item)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_every_reader_sees_every_item_as_it_comes() -> None:
    stream: Stream[int] = Stream()
    first: list[int] = []
    second: list[int] = []
    readers = [asyncio.ensure_future(collect(stream, first))]
    stream.put(1)
    await settle()
    assert first == [1]
    readers.append(asyncio.ensure_future(collect(stream, second)))
    stream.put(2)
    await settle()
    assert first == second == [1, 2]
    stream.close()
    await asyncio.gather(*readers)
    assert await stream.all() == [1, 2]


async def test_the_error_comes_after_the_items_and_to_every_reader() -> None:
    stream: Stream[int] = Stream()
    error = OSError("cut")
    seen: list[list[int]] = [[], []]
    early = asyncio.ensure_future(collect(stream, seen[0]))
    stream.put(1)
    await settle()
    stream.close(error)
    for reader in (early, asyncio.ensure_future(collect(stream, seen[1]))):
        with pytest.raises(OSError) as caught:
            await reader
        assert caught.value is error
    assert seen == [[1], [1]]


async def test_an_end_is_final() -> None:
    stream: Stream[int] = Stream()
    stream.close()
    stream.close(OSError("too late"))
    assert await stream.all() == []


async def test_items_put_during_the_read_are_seen() -> None:
    stream: Stream[int] = Stream()
    stream.put(0)
    seen = []
    async for item in stream.read():
        seen.append(item)
        if item < 3:
            stream.put(item + 1)
        else:
            stream.close()
    assert seen == [0, 1, 2, 3]


async def test_a_cancelled_reader_disturbs_nobody() -> None:
    stream: Stream[int] = Stream()
    gone: list[int] = []
    seen: list[int] = []
    cancelled = asyncio.ensure_future(collect(stream, gone))
    stays = asyncio.ensure_future(collect(stream, seen))
    await settle()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    stream.put(1)
    stream.close()
    await stays
    assert (gone, seen) == ([], [1])


async def test_an_end_wakes_readers_that_have_seen_nothing() -> None:
    stream: Stream[int] = Stream()
    readers = [asyncio.ensure_future(stream.all()) for _ in range(3)]
    await settle()
    stream.close()
    assert await asyncio.gather(*readers) == [[], [], []]


async def test_a_writer_goes_on_as_far_as_the_furthest_reader_wants() -> None:
    stream: Stream[int] = Stream()

    async def write() -> None:
        for item in range(5 * AHEAD):
            stream.put(item)
            await stream.room()
        stream.close()

    for item in range(3 * AHEAD):  # nobody reads so far
        stream.put(item)
        assert not stream.full
    slow = stream.read()
    assert await anext(slow) == 0
    assert stream.full
    writing = asyncio.ensure_future(write())
    await settle()
    assert len(stream.items) == 3 * AHEAD + 1
    quick = stream.read()
    for _ in range(3 * AHEAD):
        await anext(quick)
    await settle()
    assert len(stream.items) == 4 * AHEAD
    assert not writing.done()
    assert len([item async for item in quick]) == 5 * AHEAD
    await writing


async def test_a_reader_that_has_left_wants_no_more() -> None:
    stream: Stream[int] = Stream()
    reader = stream.read()
    for item in range(AHEAD):
        stream.put(item)
    assert await anext(reader) == 0
    await reader.aclose()  # type: ignore[attr-defined]
    assert not stream.full
    stream.put(AHEAD)
    assert stream.full
    waiting = asyncio.ensure_future(stream.room())
    await settle()
    assert not waiting.done()
    stream.close()
    await waiting
