"""Replays a scenario file: production keeper and front on virtual time, with fake ports; docs/replay.md has the words.

Strict: a reply that nobody wanted, a call that nobody declared, a question without an answer or a task left over fails.
"""

from __future__ import annotations

import asyncio
import random
import re
import traceback
from collections import Counter
from typing import TYPE_CHECKING

import dnslib
import structlog

from fakes.clock import BOOT_S, VirtualClock, VirtualLoop
from fakes.world import FakeDisk, FakeRegistry, FakeStore, FakeUpstream, Resolver, connect
from nacosdns import config as configuration
from nacosdns import config_load
from nacosdns.core.access import Access
from nacosdns.core.balance import BUILT_IN
from nacosdns.core.book import Book
from nacosdns.core.dnsname import labels_of, text_name
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.metrics import Counters
from nacosdns.core.model import Instance, ServiceKey, ServiceView
from nacosdns.core.resolvers import Ours
from nacosdns.front import Front
from nacosdns.front_control import FrontControl
from nacosdns.front_process import forward_settings, make_pipeline
from nacosdns.keeper import Keeper
from nacosdns.keeper_control import KeeperControl
from nacosdns.keeper_process import schedule_settings, services_settings

if TYPE_CHECKING:
    from pathlib import Path

    from fakes.world import FakeLink
    from nacosdns.core.pipeline import Pipeline

SETTLE_S = 0.02
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LINE = re.compile(r"(?:(?P<number>[\d.]+)(?P<unit>ms|[smhd])\s+)?(?P<words>\S.*)")


class Ended:
    """A question's waiter: collects the reply."""

    def __init__(self) -> None:
        self.depth = 0
        self.packet: bytes | None = None

    def give(self, packet: bytes | None) -> None:
        assert self.packet is None, "answered twice"
        self.packet = packet or b""


class LinkEar:
    """Joins a front to the link as front_process does."""

    def __init__(self, front: Front) -> None:
        self.joined = front.joined
        self.received = front.heard
        self.drained = front.drained
        self.left = front.left


class Scenario:
    """One file being replayed."""

    def __init__(self, path: Path, quiet: set[str], loop: VirtualLoop) -> None:
        self.path = path
        self.config = config = config_load.load(str(path), {})
        self.quiet = quiet
        self.clock = VirtualClock(loop)
        self.disk = FakeDisk()
        self.registry = FakeRegistry(configuration.namespaces(config))
        self.upstream = FakeUpstream()
        self.names = configuration.names(config)
        self.log = structlog.wrap_logger(None, processors=[_swallow])
        self.counters = Counters()
        self.asked: list[tuple[str, Ended]] = []
        self.reply: dnslib.DNSRecord | None = None
        self.epoch = 0
        self.keeper_task: asyncio.Task[None] | None = None
        self.link: FakeLink | None = None

    # --- the processes

    async def start(self) -> None:
        self.start_front()
        await self.start_keeper()

    def start_front(self) -> None:
        self.book = Book()
        rng = random.Random(7)
        self.forwarding = Forwarding(forward_settings(self.config, b"identity"), rng)
        self.pipeline = self.make_pipeline(rng)
        for row in self.disk.services.values():
            self.book.update(row.known)
        now = self.clock.now()
        self.forwarding.outside.restore(self.disk.externals.values(), now=now, wall=self.clock.wall())
        self.front = Front(
            pipeline=self.pipeline,
            book=self.book,
            forwarding=self.forwarding,
            clock=self.clock,
            counters=self.counters,
            log=self.log,
        )
        self.upstream.received, self.upstream.failed = self.front.received, self.front.failed
        self.upstream.settled = self.front.settled
        self.front.use_upstream(self.upstream)
        self.forwarding.set_upstreams(self.config.forward.upstreams, Ours(), now)
        self.front.start()

    def make_pipeline(self, rng: random.Random) -> Pipeline:
        return make_pipeline(
            self.config,
            self.book,
            BUILT_IN,
            rng,
            allowed=Access(self.config.server.allow),
            judges=not all(address.startswith("127.") for address in self.config.server.listen),
            nameserver="127.0.0.1",
            identity=b"host",
        )

    async def start_keeper(self) -> None:
        self.epoch += 1
        self.keeper = Keeper(
            policies=configuration.policies(self.config),
            services=services_settings(self.config),
            schedule=schedule_settings(self.config, self.names),
            registry=self.registry,
            store=FakeStore(self.disk),
            clock=self.clock,
            rng=random.Random(self.epoch),
            log=self.log,
            counters=self.counters,
            epoch=self.epoch,
        )
        await self.keeper.load()
        self.keeper.set_static({key: v.instances for key, v in configuration.static_services(self.config).items()})
        self.keeper_task = asyncio.get_running_loop().create_task(self.keeper.run())
        self.link = connect(self.keeper, LinkEar(self.front), self.epoch)

    async def stop_keeper(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None
        if self.keeper_task is not None:
            self.keeper_task.cancel()
            await asyncio.gather(self.keeper_task, return_exceptions=True)
            self.keeper_task = None

    # --- the script

    async def play(self, script: list[str]) -> None:
        await self.start()
        for line in script:
            match = LINE.fullmatch(line)
            assert match is not None, f"unreadable line: {line}"
            if match["number"]:
                await self.until(BOOT_S + float(match["number"]) * UNITS[match["unit"]])
            try:
                await self.do(match["words"])
            except AssertionError as error:
                assert not SURPRISES, SURPRISES.pop()
                raise AssertionError(f"at {self.clock.now() - BOOT_S:.3f}s, {line.strip()!r}: {error}") from error
        assert not SURPRISES, SURPRISES.pop()
        self.end_strictly()
        await self.stop_keeper()
        self.front.close()

    async def until(self, at: float) -> None:
        if at > self.clock.now():
            await asyncio.sleep(at - self.clock.now())

    async def do(self, words: str) -> None:
        verb, _, rest = words.partition(" ")
        if verb == "want":
            self.want(rest)
            return
        result = getattr(self, f"do_{verb}")(rest)
        if asyncio.iscoroutine(result):
            await result
        await asyncio.sleep(SETTLE_S)

    def do_nacos(self, words: str) -> None:
        if match := re.fullmatch(r"(has|pushes) (\S+): (.*)", words):
            key = service_key(match[2])
            self.registry.truth[key] = ServiceView(instances(match[3]))
            if match[1] == "pushes" or key in self.registry.subscribed:
                self.registry.push(key)
        elif match := re.fullmatch(r"(hides|lists|deletes) (.*?)(?:: (.*))?", words):
            self.registry_change(match[1], service_key(match[2]), match[3] or "")
        elif words in {"goes down", "comes up"}:
            getattr(self.registry, {"goes down": "go_down", "comes up": "come_up"}[words])()
        elif match := re.fullmatch(r"goes down: (.*)", words):
            self.registry.complaint = match[1]
            self.registry.go_down()
        elif match := re.fullmatch(r"refuses: (.*)", words):
            self.registry.refusal = match[1].removeprefix("(nothing)")
        elif match := re.fullmatch(r"takes ([\d.]+)s", words):
            self.registry.delay_s = float(match[1])
        else:
            raise AssertionError(f"unknown words: nacos {words}")

    def registry_change(self, word: str, key: ServiceKey, listed: str) -> None:
        """``hides``: changes without a push; ``lists``: in the catalogue without instances; ``deletes``: nowhere."""
        if word == "hides":
            self.registry.truth[key] = ServiceView(instances(listed))
        else:
            self.registry.truth.pop(key, None)
            (self.registry.catalogue_only.add if word == "lists" else self.registry.catalogue_only.discard)(key)

    def do_upstream(self, words: str) -> None:
        if match := re.fullmatch(r"(\S+) answers (\S+) (\S+)(?: ttl (\d+))?: (.*)", words):
            resolver = self.upstream.resolvers.setdefault(match[1], Resolver())
            resolver.records[match[2], match[3]] = match[5].split() if match[5] != "(nothing)" else []
            resolver.ttl_s = int(match[4] or 60)
        elif match := re.fullmatch(r"(\S+) (?:is|gets) (well|mute|refuses|servfail|truncates)", words):
            self.upstream.resolvers.setdefault(match[1], Resolver()).mood = match[2]
        else:
            raise AssertionError(f"unknown words: upstream {words}")

    def do_ask(self, words: str) -> None:
        match = re.fullmatch(r"(?:(\d+) times )?(\S+) (\S+)(?: (tcp))?(?: from (\S+))?", words)
        assert match is not None, f"unknown words: ask {words}"
        for _ in range(int(match[1] or 1)):
            ended = Ended()
            query = dnslib.DNSRecord(
                q=dnslib.DNSQuestion(dnslib.DNSLabel(labels_of(text_name(match[2]))), dnslib.QTYPE.reverse[match[3]])
            )
            client = bytes(map(int, match[5].split("."))) if match[5] else b"\x7f\0\0\1"
            self.book.prepared.now = self.clock.now()  # as a door does before each batch
            packet = self.front._take(bytes(query.pack()), ended, client=client, over_tcp=bool(match[4]))
            if packet is not None:
                ended.give(packet)
            if self.front.unsettled:
                self.front.settle()
            self.asked.append((words, ended))

    async def do_keeper(self, words: str) -> None:
        await {"dies": self.stop_keeper, "starts": self.start_keeper}[words]()

    async def do_front(self, words: str) -> None:
        assert words == "restarts", words
        if self.link is not None:
            self.link.close()
        self.front.close()
        self.start_front()
        if self.keeper_task is not None:
            self.link = connect(self.keeper, LinkEar(self.front), self.epoch)

    def do_configure(self, line: str) -> None:
        """A line more in the configuration, as SIGHUP brings it to keeper and front."""
        self.path.write_text(f"{line}\n{self.path.read_text()}")
        self.config = config_load.load(str(self.path), {})
        self.names = configuration.names(self.config)
        self.keeper.reconfigure(
            policies=configuration.policies(self.config),
            services=services_settings(self.config),
            schedule=schedule_settings(self.config, self.names),
        )
        self.pipeline = self.make_pipeline(random.Random(8))
        self.front.use_pipeline(self.pipeline)

    def do_disk(self, words: str) -> None:
        if words == "empties":
            self.disk.services.clear()
            self.disk.externals.clear()
        else:
            self.disk.full = {"is full": True, "has room": False}[words]

    def do_flush(self, name: str) -> None:
        assert KeeperControl(self.keeper, self.names).flush(name)["services"], "nothing was flushed"

    async def do_why(self, words: str) -> None:
        """What the command `ask` gives as reasons for the answer, the patience of a client included."""
        name, _, wanted = words.partition(": ")
        control = FrontControl(self.front, self.pipeline, self.book, self.forwarding, self.clock)
        why = "; ".join((await control.ask(name, "A"))["why"])  # type: ignore[arg-type]
        assert wanted in why if wanted != "(nothing)" else not why, f"it says: {why}"

    def do_accept(self, _: str) -> None:
        self.keeper.accept()

    def do_static(self, words: str) -> None:
        name, _, listed = words.partition(": ")
        self.keeper.set_static({service_key(name): instances(listed)} if listed != "(none)" else {})

    def do_wall(self, words: str) -> None:
        self.clock.wall_jump_s += float(words.removesuffix("s"))

    # --- what is wanted

    def want(self, words: str) -> None:
        if words == "waiting":
            assert self.asked, "nothing was asked"
            assert self.asked[0][1].packet is None, "it is answered already"
        elif match := re.fullmatch(r"(nacos|upstream) (.+)", words):
            self.want_call(self.registry.calls if match[1] == "nacos" else self.upstream.calls, match[2])
        elif match := re.fullmatch(r"protection (\S+): (\S+)", words):
            assert self.keeper.services.protection(service_key(match[1])).value == match[2], self.state(match[1])
        elif match := re.fullmatch(r"(ttl|count|rcount) (\d+)", words):
            assert self.reply is not None
            found = {"ttl": {rr.ttl for rr in self.reply.rr + self.reply.auth}, "count": {len(self.reply.rr)}}[match[1]]
            assert found == {int(match[2])}, f"got {found}"
        elif match := re.fullmatch(r"first (.+)", words):
            self.want_shares(match[1])
        elif match := re.fullmatch(r"([A-Z]+)( tc| aa| soa| external)*(?:: (.*))?", words):
            self.want_reply(match[1], words.partition(":")[0].split()[1:], match[3])
        else:
            raise AssertionError(f"unknown words: want {words}")

    def state(self, name: str) -> str:
        return repr(self.keeper.services.snapshot(service_key(name)))

    def want_call(self, calls: list[str], wanted: str) -> None:
        found = next((call for call in calls if call == wanted or call.partition(" ")[2] == wanted), None)
        assert found is not None, f"not called; there are {calls}"
        calls.remove(found)

    def next_reply(self) -> dnslib.DNSRecord:
        assert self.asked, "nothing was asked"
        words, ended = self.asked.pop(0)
        assert ended.packet, f"no answer yet to: {words}"
        self.reply = dnslib.DNSRecord.parse(ended.packet)
        return self.reply

    def want_reply(self, rcode: str, flags: list[str], listed: str | None) -> None:
        reply = self.next_reply()
        values = [str(rr.rdata).rstrip(".") for rr in reply.rr]
        shown = f"{dnslib.RCODE.get(reply.header.rcode)}: {' '.join(values)}"
        assert dnslib.RCODE.get(reply.header.rcode) == rcode, f"got {shown}"
        assert sorted(" ".join(values).split()) == sorted((listed or "").split()), f"got {shown}"
        for flag in flags:
            has = {"tc": reply.header.tc, "aa": reply.header.aa, "external": not reply.header.aa}.get(flag)
            assert has if has is not None else any(rr.rtype == 6 for rr in reply.auth), f"no {flag} in {shown}"

    def want_shares(self, words: str) -> None:
        wanted = {part.partition("=")[0]: int(part.partition("=")[2]) for part in words.split()}
        got = Counter(str(self.next_reply().rr[0].rdata) for _ in range(sum(wanted.values())))
        assert got == wanted, f"got {dict(got)}"

    def end_strictly(self) -> None:
        left = [call for call in self.registry.calls if call.partition(" ")[0] not in self.quiet]
        assert not left, f"calls to nacos that nobody declared: {left}"
        assert not self.upstream.calls or "upstream" in self.quiet, f"undeclared: {self.upstream.calls}"
        assert not self.asked, f"replies that nobody wanted: {[words for words, _ in self.asked]}"


SURPRISES: list[str] = []


def _swallow(_logger: object, _name: str, event: dict[str, object]) -> str:
    if event["event"] == "query.surprise":
        SURPRISES.append(traceback.format_exc())
    raise structlog.DropEvent


def service_key(text: str) -> ServiceKey:
    """``orders``, ``GROUP/orders`` or ``namespace/GROUP/orders``."""
    parts = text.split("/")
    namespace = parts[-3] if len(parts) > 2 else "public"
    return ServiceKey(namespace, parts[-2] if len(parts) > 1 else "DEFAULT_GROUP", parts[-1])


def instances(text: str) -> tuple[Instance, ...]:
    """``10.0.0.1:80,w=3,sick,off,cluster=BJ,key:value`` and more, by blanks; ``10.0.0.1-20:80`` is twenty of them."""
    if text == "(empty)":
        return ()
    return tuple(one for word in text.split() for one in _instances(word))


def _instances(word: str) -> list[Instance]:
    where, *marks = word.split(",")
    address, _, port = where.rpartition(":")
    options = dict(mark.split("=") for mark in marks if "=" in mark)
    metadata = tuple(tuple(mark.split(":")) for mark in marks if ":" in mark)
    span = re.fullmatch(r"(.*\.)(\d+)-(\d+)", address)
    addresses = [f"{span[1]}{n}" for n in range(int(span[2]), int(span[3]) + 1)] if span else [address.strip("[]")]
    return [
        Instance(
            one,
            int(port),
            weight=float(options.get("w", 1)),
            healthy="sick" not in marks,
            enabled="off" not in marks,
            cluster=options.get("cluster", "DEFAULT"),
            metadata=metadata,  # type: ignore[arg-type]
        )
        for one in addresses
    ]


def replay(text: str, directory: Path) -> None:
    """Plays one scenario file; AssertionError says at which time and line it went wrong."""
    parts: dict[str, list[str]] = {"config": [], "quiet": [], "script": []}
    into: list[str] = []
    for line in text.splitlines():
        if line.strip() in {"[config]", "[quiet]", "[script]"}:
            into = parts[line.strip("[] ")]
        elif line.strip() and not line.strip().startswith("#"):
            into.append(line.strip())
    path = directory / "scenario.toml"
    path.write_text(
        "\n".join(
            ['forward.upstreams = ["192.0.2.53"]' if "forward." not in str(parts["config"]) else "", *parts["config"]]
        )
    )
    quiet = set(" ".join(parts["quiet"]).split())
    loop = VirtualLoop()
    try:
        scenario = Scenario(path, quiet, loop)
        loop.run_until_complete(scenario.play(parts["script"]))
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        assert not left, f"tasks left over: {left}"
    finally:
        loop.close()
