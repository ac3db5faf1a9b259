"""A front that answers every query with one A record whose address is its own process id; it obeys some names.

`hang` in the question blocks its loop, `crash` ends it with exit status 3, after `mute` it answers nothing any more.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time

from nacosdns import child
from nacosdns.core import metrics


class FixedFront:
    def __init__(self, own: child.Child) -> None:
        self.child = own
        self.mute = False
        self.reading: list[socket.socket] = []
        self.sockets = {
            pairs.slot: [socket.socket(fileno=os.dup(fd)) for fd, _ in pairs.udp] for pairs in own.setup.sockets
        }

    async def run(self) -> None:
        self.child.ready()
        await asyncio.get_running_loop().create_future()

    def activate(self, slots: tuple[int, ...]) -> None:
        loop = asyncio.get_running_loop()
        for sock in self.reading:
            loop.remove_reader(sock)
        self.reading = [sock for slot in slots for sock in self.sockets[slot]]
        for sock in self.reading:
            loop.add_reader(sock, self.answer_packet, sock)

    def answer_packet(self, sock: socket.socket) -> None:
        packet, client = sock.recvfrom(4096)
        if b"\x04hang" in packet:
            time.sleep(60)
        if b"\x05crash" in packet:
            os._exit(3)
        self.mute = self.mute or b"\x04mute" in packet
        if self.mute:
            return
        self.child.counters[metrics.query_index("udp", "a", "noerror", "zone")] += 1
        self.child.flush()
        counts = b"\x00\x01\x00\x01\x00\x00\x00\x00"
        answer = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04" + os.getpid().to_bytes(4, "big")
        question = packet[12 : packet.index(b"\x00", 12) + 5]
        sock.sendto(packet[:2] + b"\x85\x00" + counts + question + answer, client)

    def configure(self, config: object, password: str) -> None:
        self.child.log.info("fake.configured", password=password)

    async def drain(self, deadline_s: float) -> None:
        self.activate(())

    async def answer(self, verb: str, arguments: dict[str, object]) -> object:
        return {"verb": verb, "arguments": arguments, "pid": os.getpid()}


if __name__ == "__main__":
    child.main(FixedFront)
