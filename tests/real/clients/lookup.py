"""A program that looks up names as Python programs do: ``lookup.py KIND,NAME,TIMES,PAUSE_MS…``, KIND: host, inet, inet6.

One line of JSON for each look-up: {"got": ["10.0.0.1"], "error": ""}
"""

from __future__ import annotations

import json
import socket
import sys
import time

FAMILIES = {"host": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}
WORDS = {socket.EAI_NONAME: "no name", socket.EAI_NODATA: "no data", socket.EAI_AGAIN: "try again"}


def look_up(kind: str, name: str) -> dict[str, object]:
    try:
        found = socket.getaddrinfo(name, None, FAMILIES[kind], socket.SOCK_STREAM)
    except socket.gaierror as error:
        return {"got": [], "error": WORDS.get(error.errno or 0, str(error))}
    return {"got": [address[0] for *_, address in found], "error": ""}


for argument in sys.argv[1:]:
    kind, name, times, pause_ms = argument.split(",")
    for turn in range(int(times)):
        if turn:
            time.sleep(int(pause_ms) / 1000)
        print(json.dumps(look_up(kind, name)), flush=True)  # noqa: T201 - the answer
