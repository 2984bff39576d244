"""The network of a stress drill: each fault looks to both ends as it does on a real one."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from tests.patience import HANG_S
from tests.stress.proxy import Proxy

PATIENCE_S = HANG_S
LONG_S = 3600.0
"""A fault that does not heal while a test looks."""


@asynccontextmanager
async def door(capfd, lead=True):
    """A proxy, how to dial through its one door, and the connections that arrive behind it."""
    arrived = asyncio.Queue()
    behind = await asyncio.start_server(lambda *streams: arrived.put_nowait(streams), "127.0.0.1", 0)
    port = behind.sockets[0].getsockname()[1]
    proxy = Proxy()
    proxy.obey({"do": "open", "door": "peer 1"})
    opened = json.loads(capfd.readouterr().out)
    if lead:
        proxy.obey({"do": "lead", "door": "peer 1", "port": port})
    streams = []

    async def dial():
        near = await asyncio.open_connection("127.0.0.1", opened["port"])
        streams.append(near)
        if not lead:
            proxy.obey({"do": "lead", "door": "peer 1", "port": port})
        far = await arrived.get()
        streams.append(far)
        return near, far

    async with asyncio.timeout(PATIENCE_S):
        yield proxy, dial
        for _, writer in streams:
            writer.close()
        proxy.obey({"do": "shut", "door": "peer 1"})
        behind.close()
        while proxy._connections:
            await asyncio.wait([proxy._connections[0].task])


def cut(proxy, kind, sides=(0, 1), seconds=LONG_S, pick=0.0):
    order = {"do": "cut", "kind": kind, "doors": "peer", "pick": pick, "sides": list(sides), "seconds": seconds}
    proxy.obey(order)


async def passes(source, sink, word=b"word"):
    """Send it and see it arrive."""
    source[1].write(word)
    assert await sink[0].readexactly(len(word)) == word


async def is_reset(stream):
    with pytest.raises(ConnectionError):
        await stream[0].readexactly(1)


def played(scene):
    """Run it in a loop of its own."""

    def test(capfd):
        asyncio.run(scene(capfd))

    return test


@played
async def test_bytes_and_ends_pass(capfd):
    async with door(capfd) as (_, dial):
        near, far = await dial()
        await passes(near, far)
        await passes(far, near, b"back" * 100_000)
        near[1].write_eof()
        assert await far[0].read() == b""
        await passes(far, near)


@played
async def test_a_door_keeps_callers_waiting_until_it_leads_somewhere(capfd):
    async with door(capfd, lead=False) as (_, dial):
        await passes(*await dial())


@played
async def test_a_reset_is_one_at_both_ends_and_leaves_others_alone(capfd):
    async with door(capfd) as (proxy, dial):
        (near, far), other = await dial(), await dial()
        await passes(near, far)
        await passes(*other)
        cut(proxy, "reset")
        await is_reset(near)
        await is_reset(far)
        await passes(*other)
        assert json.loads(capfd.readouterr().out) == {"event": "cut", "kind": "reset", "door": "peer 1"}


@played
async def test_all_connections_of_a_door_are_reset_together(capfd):
    async with door(capfd) as (proxy, dial):
        pairs = [await dial(), await dial()]
        for pair in pairs:
            await passes(*pair)
        cut(proxy, "reset all")
        for end in (end for pair in pairs for end in pair):
            await is_reset(end)


@played
async def test_closed_is_the_end_of_bytes_at_both_ends(capfd):
    async with door(capfd) as (proxy, dial):
        near, far = await dial()
        await passes(near, far)
        cut(proxy, "close")
        assert await near[0].read() == b""
        assert await far[0].read() == b""


@played
async def test_a_stall_loses_nothing_and_leaves_the_other_direction_alone(capfd):
    async with door(capfd) as (proxy, dial):
        near, far = await dial()
        await passes(near, far)
        cut(proxy, "stall", sides=(1,), seconds=0.2)
        began = asyncio.get_running_loop().time()
        near[1].write(b"late")
        await passes(far, near)
        assert await far[0].readexactly(4) == b"late"
        assert asyncio.get_running_loop().time() - began >= 0.19
        await passes(near, far)


@played
async def test_a_black_hole_swallows_what_is_sent_until_it_is_found_out(capfd):
    async with door(capfd) as (proxy, dial):
        near, far = await dial()
        await passes(near, far)
        cut(proxy, "black hole", sides=(1,), seconds=0.2)
        near[1].write(b"lost")
        await passes(far, near)
        await is_reset(far)
        await is_reset(near)


@played
async def test_half_open_is_the_end_for_one_and_nothing_for_the_other(capfd):
    async with door(capfd) as (proxy, dial):
        near, far = await dial()
        await passes(near, far)
        cut(proxy, "half-open", sides=(0,), seconds=0.2)
        assert await near[0].read() == b""
        far[1].write(b"lost")
        await is_reset(far)


@played
async def test_what_is_struck_already_or_not_there_is_not_struck(capfd):
    async with door(capfd) as (proxy, dial):
        cut(proxy, "reset")
        near, far = await dial()
        await passes(near, far)
        cut(proxy, "stall", seconds=0.1)
        cut(proxy, "reset")
        assert capfd.readouterr().out.count("cut") == 1
        await passes(near, far)
