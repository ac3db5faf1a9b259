"""A program that looks up names by libc all the time, as services do, and says what it was told.

``python -m fakes.resolving RATE NAME…`` looks up one name after the other, RATE a second, several at a time, until its input
ends or 60 s are over, and prints a JSON object: per name how many times which addresses were found, failures, the slowest.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

SECONDS_MAX = 60.0
AT_ONCE = 24


def look_up(name: str) -> tuple[str, str, float, float]:
    """The name, its addresses or the error in words, the milliseconds that it took, and when it began."""
    began = time.monotonic()
    try:
        found = sorted({address[4][0] for address in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)})
        told = ",".join(map(str, found))
    except OSError as error:
        told = f"failed: {error} at {time.monotonic():.1f}"
    return name, told, (time.monotonic() - began) * 1000, began


def main(rate: float, names: list[str]) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    began, number, pending = time.monotonic(), 0, []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while not ended.is_set() and time.monotonic() - began < SECONDS_MAX:
            pending.append(pool.submit(look_up, names[number % len(names)]))
            number += 1
            ended.wait(max(0.0, began + number / rate - time.monotonic()))
    done = [one.result() for one in pending]
    told: dict[str, Counter[str]] = {name: Counter() for name in names}
    for name, words, *_ in done:
        told[name][words] += 1
    slow = sorted((took_ms, name, at_s) for name, _, took_ms, at_s in done)
    middle_ms = slow[len(slow) // 2][0]
    told_all = {"told": told, "asked": len(done), "slowest_ms": slow[-1][0], "median_ms": middle_ms, "slow": slow[-5:]}
    print(json.dumps(told_all), flush=True)  # noqa: T201 - whoever started it reads that


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
