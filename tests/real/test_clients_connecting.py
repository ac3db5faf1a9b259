"""Programs that connect to what they find: curl and gRPC, on a host whose resolv.conf names the bridge."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from fakes.client_host import ClientHost, table
from fakes.running import until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network and mount namespaces, port 53")

PORT = 8080
WEB = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
RPC = tuple(f"127.0.1.{number}" for number in range(1, 61))
ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'
POLICIES = f"[policy.rpc]\ngrpc_config = '{ROUND_ROBIN}'\n"
SERVICES = "".join(
    (
        table("web", WEB, PORT, step=0),
        table("half-dead", (*WEB[:1], "127.0.0.99"), PORT, step=0),
        table("dead-six", ("2001:db8:1::1", WEB[0]), PORT, step=0),
        table("rpc", RPC, PORT, step=0),
        table("rpc-plain", RPC, PORT, step=0),
    )
)
LATER = table("later", RPC[:3], PORT, step=0)
SERVE = """
import http.server, sys, threading
class Who(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.connection.getsockname()[0].encode() + b"\\n")
    def log_message(self, *words): ...
for address in sys.argv[2:]:
    server = http.server.ThreadingHTTPServer((address, int(sys.argv[1])), Who)
    threading.Thread(target=server.serve_forever).start()
print("ready", flush=True)
"""
ASK = """
import json, sys
from collections import Counter
import grpc
from fakes.grpc_world import METHOD
target, times, reads_txt, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
options = [("grpc.service_config_disable_resolution", 0)] if reads_txt else []
with grpc.insecure_channel(target, options=options) as channel:
    call = channel.unary_unary(METHOD)
    print("ready", flush=True)
    try:
        answers = Counter(call(b"", timeout=seconds, wait_for_ready=True).decode() for _ in range(times))
    except grpc.RpcError as error:
        answers = {"failed": error.code().name}
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientHost]:
    with ClientHost(tmp_path_factory.mktemp("host"), services=SERVICES, text=POLICIES) as running:
        running.start(sys.executable, "-c", SERVE, str(PORT), *WEB)
        running.start(sys.executable, "-m", "fakes.grpc_world", "serve", str(PORT), *RPC)
        yield running


@pytest.fixture(autouse=True)
def beginning(host: ClientHost) -> None:
    host.heard()


def fetched(host: ClientHost, name: str, times: int, *options: str) -> Counter[str]:
    """Who answered so many runs of curl."""
    if not shutil.which("curl"):
        assert os.environ.get("NACOSDNS_REQUIRE_REAL") != "1", "needs curl"
        pytest.skip("needs curl")
    command = ("curl", "-sS", "--max-time", "5", *options, f"http://{name}.nacos:{PORT}/")
    return Counter(host.run(*command).strip() for _ in range(times))


def rpc(host: ClientHost, name: str, times: int, *, reads_txt: bool) -> subprocess.Popen[str]:
    words = (f"dns:///{name}.nacos:{PORT}", str(times), str(int(reads_txt)), "20")
    return host.start(sys.executable, "-c", ASK, *words)


def answers(client: subprocess.Popen[str]) -> dict[str, int]:
    said: dict[str, int] = json.loads(client.communicate(timeout=60)[0])
    return said


def test_curl_comes_to_every_instance_in_turn(host: ClientHost) -> None:
    assert fetched(host, "web", 6) == dict.fromkeys(WEB, 2)


def test_curl_goes_on_to_the_next_address_when_the_first_is_dead(host: ClientHost) -> None:
    assert fetched(host, "half-dead", 4) == {WEB[0]: 4}


def test_curl_goes_on_to_ipv4_when_ipv6_is_dead(host: ClientHost) -> None:
    assert fetched(host, "dead-six", 2) == {WEB[0]: 2}


def test_grpc_without_a_config_keeps_to_one_of_sixty(host: ClientHost) -> None:
    said = answers(rpc(host, "rpc-plain", 30, reads_txt=False))

    assert list(said.values()) == [30]
    assert set(said) <= set(RPC)


def test_grpc_takes_its_config_from_txt_and_reaches_all_sixty_by_tcp_or_edns(host: ClientHost) -> None:
    said = answers(rpc(host, "rpc", 600, reads_txt=True))
    asked = set(host.asked())

    assert set(said) == set(RPC)
    assert "udp TXT _grpc_config.rpc.nacos" in asked
    assert any(one.startswith("tcp A rpc.nacos") for one in asked)


def test_grpc_that_waits_for_a_name_finds_it_when_it_appears(host: ClientHost) -> None:
    client = rpc(host, "later", 1, reads_txt=False)
    heard: list[str] = []
    until(lambda: heard.extend(host.asked()) or "udp A later.nacos" in heard, 10, "a question in vain")
    host.serve(SERVICES + LATER)

    assert set(answers(client)) <= set(RPC[:3])
