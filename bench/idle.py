"""What the bridge costs while hardly anybody asks: wake-ups, CPU, requests to Nacos, memory, by process.

Starts a real Nacos (deploy/nacos), a provider of SERVICES services and the real program, asks for each service once, and
then counts for SECONDS seconds while RATE questions a second are asked in turn: voluntary context switches of all threads
(a wake-up each), CPU time, requests by the program's own metrics, and at the end PSS. Text, or with --json one object.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from measure import cpu_s

from fakes.real_nacos import RealNacos
from fakes.running import exchange, free_port, packet

MANY = Path(__file__).parents[1] / "tests" / "fakes" / "many.py"
FIGURES = {"wakeups_per_s": 30.0, "cpu_percent": 1.0, "requests_per_s": 0.5, "pss_mb": 180.0}


def processes(supervisor: int) -> dict[int, str]:
    """The pids of the bridge and what each is; the second front is the standby."""
    found = {supervisor: "supervisor"}
    for pid in map(int, Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()):
        module = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[-3]
        word = module.removeprefix("nacosdns.").removesuffix("_process")
        found[pid] = "standby" if word in found.values() else word
    return found


def switches(pid: int) -> dict[str, int]:
    """Voluntary context switches by thread."""
    counts: dict[str, int] = defaultdict(int)
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        name = re.search(r"^Name:\t(.*)$", status, re.MULTILINE)
        number = re.search(r"^voluntary_ctxt_switches:\t(\d+)$", status, re.MULTILINE)
        if name and number:
            counts["main" if task.name == str(pid) else name[1]] += int(number[1])
    return dict(counts)


def pss_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0]) / 1024


def requests(web_port: int) -> float:
    """Everything that was sent to Nacos so far, by the program's own count."""
    with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return sum(
        float(value) for value in re.findall(r"^nacosdns_registry_requests_total\{.*\} (\S+)$", text, re.MULTILINE)
    )


def ask(names: list[str], port: int, rate: float, seconds: float) -> int:
    """Asks in turn at this rate; how many got no address."""
    lost = 0
    began = time.monotonic()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        reply = exchange(packet(names[number % len(names)]), port)
        lost += not int.from_bytes(reply[6:8], "big")
    return lost


def measure(supervisor: int, names: list[str], dns_port: int, web_port: int, options: argparse.Namespace) -> dict:
    roles = processes(supervisor)
    before = {pid: (switches(pid), cpu_s([pid])) for pid in roles}
    sent, began = requests(web_port), time.monotonic()
    lost = ask(names, dns_port, options.rate, options.seconds)
    took_s = time.monotonic() - began
    rows = {}
    for pid, role in roles.items():
        earlier, cpu = before[pid]
        threads = {name: (count - earlier.get(name, 0)) / took_s for name, count in switches(pid).items()}
        rows[role] = {
            "wakeups_per_s": sum(threads.values()),
            "threads": {name: rate for name, rate in threads.items() if rate > 0.05},
            "cpu_percent": (cpu_s([pid]) - cpu) / took_s * 100,
            "pss_mb": pss_mb(pid),
        }
    total = {key: sum(row[key] for row in rows.values()) for key in ("wakeups_per_s", "cpu_percent", "pss_mb")}
    total["requests_per_s"] = (requests(web_port) - sent) / took_s
    return {"seconds": took_s, "unanswered": lost, "processes": rows, "total": total, "figures": FIGURES}


def bridge(place: str, nacos_port: int) -> tuple[subprocess.Popen[bytes], int, int]:
    dns_port, web_port = free_port(), free_port()
    config = Path(place, "bridge.toml")
    config.write_text(
        f'[server]\nlisten = ["127.0.0.1:{dns_port}"]\nuser = ""\n[nacos]\nservers = ["127.0.0.1:{nacos_port}"]\n'
        f'[cache]\ndir = "{place}/state"\n[web]\nlisten = "127.0.0.1:{web_port}"\n[log]\nlevel = "error"\n'
        f'[forward]\nupstreams = ["127.0.0.1:9"]\n'
    )
    return subprocess.Popen([sys.executable, "-m", "nacosdns.cli", "run", "-c", str(config)]), dns_port, web_port


def run(options: argparse.Namespace) -> dict:
    names = [f"many-{number}.nacos" for number in range(options.services)]
    with tempfile.TemporaryDirectory() as place:
        nacos = RealNacos(Path(place, "nacos")).start()
        command = [sys.executable, MANY, nacos.address, str(options.services), f"{place}/provider"]
        provider = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert provider.stdout is not None
            provider.stdout.readline()
            running, dns_port, web_port = bridge(place, nacos.port)
            try:
                time.sleep(5)
                ask(names, dns_port, 50, len(names) / 50)
                time.sleep(options.settle)
                return measure(running.pid, names, dns_port, web_port, options)
            finally:
                running.send_signal(signal.SIGTERM)
                running.wait(10)
        finally:
            provider.kill()
            provider.communicate()
            nacos.kill()


def table(found: dict) -> str:
    lines = [f"{'process':<12}{'wake-ups/s':>12}{'CPU %':>8}{'PSS MB':>8}   threads"]
    for role, row in found["processes"].items():
        threads = " ".join(f"{name}={rate:.1f}" for name, rate in sorted(row["threads"].items(), key=lambda x: -x[1]))
        figures = f"{row['wakeups_per_s']:>12.1f}{row['cpu_percent']:>8.2f}{row['pss_mb']:>8.1f}"
        lines.append(f"{role:<12}{figures}   {threads}")
    total = found["total"]
    lines.append(f"{'all':<12}{total['wakeups_per_s']:>12.1f}{total['cpu_percent']:>8.2f}{total['pss_mb']:>8.1f}")
    limits = found["figures"]
    lines.append(
        f"{'at most':<12}{limits['wakeups_per_s']:>12.1f}{limits['cpu_percent']:>8.2f}{limits['pss_mb']:>8.1f}"
    )
    lines.append(f"requests to Nacos: {total['requests_per_s']:.2f}/s, at most {limits['requests_per_s']}")
    lines.append(f"{found['seconds']:.0f} s; questions without an address: {found['unanswered']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--services", type=int, default=200)
    parser.add_argument("--rate", type=float, default=5.0, help="questions a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=20.0, help="seconds between the first questions and the count")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = run(options)
    print(json.dumps(found) if options.json else table(found))


if __name__ == "__main__":
    main()
