"""Fuzzes the rooms that read bytes from outside: ``make fuzz``, with ``ARGS="--seconds 600 --only query"`` and so on.

With atheris (``pip install '.[fuzz]'``) the inputs follow the coverage; without it a plain loop wounds the seeds. Either
says which it is, how many inputs it tried, and for a find the traceback and the input; exit 1 then.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

SHARED = Path(__file__).parent
BYTES_MAX = 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together (60)")
    parser.add_argument("--only", action="append", help="a target; may be said more than once")
    parser.add_argument("--plain", action="store_true", help="the plain loop, also where atheris is installed")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the plain loop: the same finds again")
    parser.add_argument("--guided", metavar="TARGET", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.guided:
        guide(arguments.guided, arguments.seconds)
    targets = load_targets()
    chosen = arguments.only or list(targets)
    unknown = [name for name in chosen if name not in targets]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(targets)}")
    seconds = arguments.seconds / len(chosen)
    is_guided = importlib.util.find_spec("atheris") is not None and not arguments.plain
    engine = "atheris, by coverage" if is_guided else f"a plain loop over the seeds, seed {arguments.seed}"
    print(f"{len(chosen)} targets, {seconds:.0f} s each, {engine}")
    good = [guided(name, seconds) if is_guided else plain(name, seconds, Random(arguments.seed)) for name in chosen]
    return 0 if all(good) else 1


def load_targets():
    sys.path.insert(0, str(SHARED))
    from targets import TARGETS  # noqa: PLC0415  # atheris instruments what is imported after it

    return TARGETS


# The plain loop


def plain(name: str, seconds: float, rng: Random) -> bool:
    """Wounds seeds, and what came of them, until the time is over or something is found."""
    target = load_targets()[name]
    pool = list(target.seeds)
    end, tried = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = wounded(rng, rng.choice(pool))
        tried += 1
        fault = fault_of(target.run, data)
        if fault:
            print(f"{name}: after {tried} inputs\n{fault}\ninput: {data.hex()}")
            return False
        if tried % 50 == 0:
            pool.append(data)
            del pool[len(target.seeds) : -200]
    print(f"{name}: {tried} inputs, nothing found")
    return True


def fault_of(run, data: bytes) -> str:
    try:
        run(data)
    except Exception:  # noqa: BLE001  # whatever it is, it is what we look for
        return traceback.format_exc()
    return ""


def wounded(rng: Random, seed: bytes) -> bytes:
    """A few small changes, as transmission, disks and people make them."""
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 3, 5, 8))):
        at = rng.randrange(len(data) + 1)
        size = rng.choice((1, 1, 2, 4, 16))
        match rng.randrange(7):
            case 0:
                data[at : at + size] = rng.randbytes(size)
            case 1 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 2:
                data[at : at + 1] = bytes((rng.choice((0, 1, 0x3F, 0x40, 0x7F, 0x80, 0xC0, 0xFF)),))
            case 3:
                data[at:at] = rng.randbytes(size)
            case 4:
                del data[at : at + size]
            case 5:
                data[at:at] = data[max(0, at - size * 4) : at] * rng.choice((1, 2, 50))
            case _:
                del data[at:]
    return bytes(data[:BYTES_MAX])


# atheris


def guided(name: str, seconds: float) -> bool:
    """One target in a process of its own, which atheris ends."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--guided", name, "--seconds", str(seconds)]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        summary = [line.split(maxsplit=1)[1] for line in lines if line.startswith("stat::number_of_executed_units")]
        if done.returncode == 0:
            print(f"{name}: {' '.join(summary) or 'no'} inputs, nothing found")
            return True
        print("\n".join([f"{name}:", *lines[-40:]]))
        for artifact in Path(directory).glob("*-*"):
            print(f"input: {artifact.read_bytes().hex()}")
        return False


def guide(name: str, seconds: float) -> None:
    """Hands a target to atheris, which does not return."""
    import atheris  # noqa: PLC0415  # an extra that not everybody has

    with atheris.instrument_imports(include=["nacosdns"]):
        target = load_targets()[name]
    corpus = Path("seeds")
    corpus.mkdir()
    for number, seed in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(seed)
    limits = [
        f"-max_total_time={max(1, round(seconds))}",
        f"-max_len={BYTES_MAX}",
        "-print_final_stats=1",
        "-timeout=10",
    ]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
