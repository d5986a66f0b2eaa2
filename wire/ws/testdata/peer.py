"""A foreign peer for the tests of package ws, over Debian's python3-websockets.

    peer.py client URI LIMIT   speaks to an echo server; exits with 0 when all was as it should be
    peer.py server             prints its port, echoes in fragments with pings between them, closes
                               with 1013 "later" when told "bye"; after each connection it prints
                               "closed CODE REASON" as the other side said; ends with its standard input
"""

import asyncio
import sys

import websockets

PIECE = 1000  # bytes or characters of a fragment


async def fragments(ws, message, pings):
    """Yields the pieces of a message that is not empty. Between them, pings go out."""
    for i in range(0, len(message), PIECE):
        if i % (10 * PIECE) == 0:
            pings.append(await ws.ping())  # of random bytes
        yield message[i : i + PIECE]


async def answered(pings):
    for ping in pings:
        await asyncio.wait_for(ping, 10)
    pings.clear()


async def send(ws, message, pings):
    await ws.send(fragments(ws, message, pings) if message else message)


async def client(uri, limit):
    async with websockets.connect(uri, max_size=None) as ws:
        assert not ws.extensions, "an extension was negotiated"
        pings = []
        for n in (0, 1, 125, 126, 4096, 16022, 65535, 65536, limit):
            for message in ("k" * n, b"k" * n, "ä" * (n // 2)):
                for how in (ws.send(message), send(ws, message, pings)):
                    await how
                    got = await ws.recv()
                    assert got == message, f"{len(got)} came back for {len(message)}, {type(message)}"
        await answered(pings)
        await ws.close(4001, "döne")
        assert ws.close_code == 4001, f"close was answered with {ws.close_code}"
    for big in (b"k" * (limit + 1), "k" * (limit + 1)):
        async with websockets.connect(uri, max_size=None) as ws:
            try:
                await ws.send(big)
                await ws.recv()
            except websockets.ConnectionClosed:
                pass
            assert ws.close_code == 1009, f"too much was answered with {ws.close_code}"


async def echo(ws):
    pings = []
    try:
        async for message in ws:
            if message == "bye":
                await answered(pings)
                await ws.close(1013, "later")
                break
            await send(ws, message, pings)
    except websockets.ConnectionClosed:
        pass
    await ws.wait_closed()
    print("closed", ws.close_code, ws.close_reason, flush=True)


async def server():
    async with websockets.serve(echo, "127.0.0.1", 0, max_size=None) as s:
        print(s.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if sys.argv[1] == "client":
    asyncio.run(client(sys.argv[2], int(sys.argv[3])))
else:
    asyncio.run(server())
