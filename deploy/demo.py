"""Shows the main job on this machine, saying what it does: ``make demo``. Everything it starts it also ends.

With Java 17, Maven and curl: a real Nacos, the bridge, three weighted instances held by programs of their own; one
program is killed, Nacos is stopped, and the answers are looked at all the time. Without them: the same with a static
file in place of Nacos.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

NACOS = Path(__file__).parent / "nacos"
PROGRAM = [sys.executable, "-m", "nacosdns.cli"]
NAME = "orders.nacos"
WEIGHTS = {"10.0.0.1": 1, "10.0.0.2": 2, "10.0.0.3": 3}
QUESTION = b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06orders\x05nacos\x00\x00\x01\x00\x01"
DEADLINE_S = 60.0
STATIC = """[[static]]
name = "orders"
instances = [
{instances}
]
"""


def say(words: str) -> None:
    """One step, for the reader."""
    print(f"\n\033[1m{words}\033[0m" if sys.stdout.isatty() else f"\n== {words}", flush=True)


def ask(port: int) -> list[str]:
    """The addresses of orders.nacos in the order of the answer; none without an answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(2.0)
        sock.connect(("127.0.0.1", port))
        try:
            sock.send(b"\x00\x07" + QUESTION)
            reply = sock.recv(4096)
        except OSError:
            return []
    start = len(QUESTION) + 2
    return [
        socket.inet_ntoa(reply[start + 16 * n + 12 : start + 16 * n + 16])
        for n in range(int.from_bytes(reply[6:8], "big"))
    ]


def until(port: int, wanted: set[str]) -> float:
    """Waits for this answer; the seconds that it took."""
    began = time.monotonic()
    while set(ask(port)) != wanted:
        if time.monotonic() - began > DEADLINE_S:
            raise SystemExit(f"{NAME} did not become {sorted(wanted)} within {DEADLINE_S:g} s; it is {ask(port)}")
        time.sleep(0.002)
    return time.monotonic() - began


def free_port() -> int:
    """A port that nobody uses, with P+1000, P+1001 and P-1000 free as well."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1]) // 2 + 5000
        if all(_is_free(port + offset) for offset in (0, 1000, 1001, -1000)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Demo:
    """What was started, so that it can be ended."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.port = free_port()
        self.nacos_port = free_port()
        self.config = place / "bridge.toml"
        self.static = place / "static.toml"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.has_nacos = all(map(shutil.which, ("java", "mvn", "curl", "bash")))

    def run(self) -> None:
        """All of it."""
        self.start_registry()
        self.start_bridge()
        self.register()
        self.show()
        self.kill_a_provider()
        self.stop_registry()

    def start_registry(self) -> None:
        """A real Nacos where there is Java, else a file."""
        if not self.has_nacos:
            say("No Java, Maven and curl here: services come from a static file instead of Nacos.")
            self.write_static(WEIGHTS)
            return
        say(
            f"A real Nacos on 127.0.0.1:{self.nacos_port} (the first time this fetches its jars, about half a minute) …"
        )
        self.nacos("start-nacos.sh", str(self.nacos_port))

    def nacos(self, script: str, *arguments: str) -> None:
        """Runs one of deploy/nacos's scripts."""
        environment = {**os.environ, "NACOS_DATA": str(self.place / "nacos"), "NACOS_PUSH_DELAY_MS": "0"}
        done = subprocess.run(  # our own script
            ["/usr/bin/env", "bash", str(NACOS / script), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{script} failed:\n{done.stderr}")

    def write_static(self, weights: dict[str, int]) -> None:
        """The static file with these instances."""
        lines = [f'  {{ ip = "{ip}", port = 8080, weight = {weight} }},' for ip, weight in weights.items()]
        self.static.write_text(STATIC.format(instances="\n".join(lines)))

    def start_bridge(self) -> None:
        """The bridge on a free port."""
        say(f"The bridge on 127.0.0.1:{self.port} …")
        servers = f'"127.0.0.1:{self.nacos_port}"' if self.has_nacos else ""
        top = f'static_file = "{self.static}"\n' if not self.has_nacos else ""
        self.config.write_text(
            f'{top}[server]\nlisten = ["127.0.0.1:{self.port}"]\nuser = ""\n[nacos]\nservers = [{servers}]\n'
            f'[web]\nlisten = ""\n[cache]\ndir = "{self.place / "state"}"\n'
        )
        self.start("bridge", "run")

    def start(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        """A command of nacosdns in the background; its log is shown when something goes wrong."""
        with (self.place / f"{log}.log").open("wb") as output:
            process = subprocess.Popen([*PROGRAM, *words, "-c", str(self.config)], stderr=output)  # ourselves
        self.processes.append(process)
        return process

    def register(self) -> None:
        """Three programs, one instance each."""
        if self.has_nacos:
            say("Three programs register an instance each, with weights 1, 2 and 3 …")
            for ip, weight in WEIGHTS.items():
                print(f"$ nacosdns register orders --ip {ip} --port 8080 --weight {weight}")
                self.start(
                    f"register-{ip}", "register", "orders", "--ip", ip, "--port", "8080", "--weight", str(weight)
                )
        print(f"all three in the answer after {until(self.port, set(WEIGHTS)):.2f} s")

    def show(self) -> None:
        """The answer, its reasons, and the shares of first places."""
        if shutil.which("dig"):
            say("Asked by dig …")
            self.dig("A")
            self.dig("SRV")
        say("Asked by nacosdns, which says why …")
        subprocess.run([*PROGRAM, "ask", NAME, "-c", str(self.config)], check=True)  # ourselves
        shares = Counter(ask(self.port)[0] for _ in range(600))
        say("Who stood first in 600 answers (weights 1 : 2 : 3) …")
        print("  ".join(f"{ip}: {shares[ip]}" for ip in WEIGHTS))

    def dig(self, kind: str) -> None:
        """One question by dig."""
        command = ["dig", "@127.0.0.1", "-p", str(self.port), NAME, kind, "+noall", "+answer"]
        print(f"$ {' '.join(command)}", flush=True)
        subprocess.run(command, check=True)  # dig

    def kill_a_provider(self) -> None:
        """One of the three dies."""
        left = {ip: weight for ip, weight in WEIGHTS.items() if ip != "10.0.0.3"}
        if self.has_nacos:
            say("The program that holds 10.0.0.3 is killed (kill -9) …")
            self.processes[-1].kill()
        else:
            say("10.0.0.3 is taken out of the static file …")
            self.write_static(left)
        took = until(self.port, set(left))
        print(f"gone from the answer after {took:.2f} s: {' '.join(ask(self.port))}")

    def stop_registry(self) -> None:
        """Nacos goes away; answers go on."""
        if not self.has_nacos:
            return
        say("Nacos is killed; the answers go on …")
        self.nacos("stop-nacos.sh", str(self.place / "nacos"), "-9")
        ends = time.monotonic() + 5.0
        asked = good = 0
        while time.monotonic() < ends:
            asked += 1
            good += set(ask(self.port)) == {"10.0.0.1", "10.0.0.2"}
            time.sleep(0.01)
        print(f"{good} of {asked} answers right in the 5 s after it")
        if good != asked:
            raise SystemExit("an answer was wrong while Nacos was away")
        subprocess.run([*PROGRAM, "services", "-c", str(self.config)], check=True)  # ourselves

    def end(self) -> None:
        """Ends everything that is left."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        if self.has_nacos:
            self.nacos("stop-nacos.sh", str(self.place / "nacos"), "-9")

    def logs(self) -> None:
        """What the programs said, for whoever has to find out."""
        for path in sorted(self.place.glob("*.log")):
            print(f"--- {path.name}\n{path.read_text()[-3000:]}", file=sys.stderr)


def main() -> None:
    """The demo, and its end whatever happens."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        demo = Demo(Path(place))
        try:
            demo.run()
        except BaseException:
            demo.logs()
            raise
        finally:
            demo.end()
    say(f"Done in {time.monotonic() - began:.0f} s; nothing is left running.")


if __name__ == "__main__":
    main()
