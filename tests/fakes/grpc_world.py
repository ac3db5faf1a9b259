"""A gRPC service of three servers, one an address, and a client that counts who answered.

``python -m fakes.grpc_world serve PORT ADDRESS…`` prints ready and serves until killed;
``python -m fakes.grpc_world ask TARGET TIMES`` prints the answering addresses as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from concurrent import futures

import grpc

METHOD = "/nacosdns.test.Who/Are"


def serve(port: int, addresses: list[str]) -> None:
    servers = []
    for address in addresses:

        def answer(_request: bytes, _context: object, who: str = address) -> bytes:
            return who.encode()

        handler = grpc.unary_unary_rpc_method_handler(answer)
        server = grpc.server(futures.ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("nacosdns.test.Who", {"Are": handler})])
        assert server.add_insecure_port(f"{address}:{port}")
        server.start()
        servers.append(server)
    print("ready", flush=True)  # noqa: T201 - the test waits for it
    threading.Event().wait()


def ask(target: str, times: int) -> None:
    config = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    with grpc.insecure_channel(target, options=[("grpc.service_config", config)]) as channel:
        call = channel.unary_unary(METHOD)
        answers = [call(b"", timeout=10, wait_for_ready=True).decode() for _ in range(times)]
    print(json.dumps(Counter(answers)))  # noqa: T201 - the answer


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), sys.argv[3:])
    else:
        ask(sys.argv[2], int(sys.argv[3]))
