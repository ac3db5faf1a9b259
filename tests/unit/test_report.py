"""What commands print for people."""

from __future__ import annotations

import time

import pytest

from nacosdns import commands, problems, report
from nacosdns.core import words


def test_cached_answers_tell_stale_ones_and_flags_apart() -> None:
    row = {"name": "a.example.", "type": "A", "rcode": "NOERROR", "age_s": 70.0, "ttl_s": 60}
    rows = [
        row | {"left_s": 30.0, "dnssec_ok": False, "checking_disabled": False},
        row | {"left_s": -10.0, "dnssec_ok": True, "checking_disabled": True},
    ]
    fresh, stale = (line.split() for line in report.cached(rows).splitlines()[1:])

    assert "stale" not in fresh
    assert "DO" not in fresh
    assert {"stale", "DO", "CD"} <= set(stale)


@pytest.mark.parametrize(
    ("services", "externals", "let_go"), [([], [0, 0], False), (["orders"], [0, 0], True), ([], [0, 1], True)]
)
def test_a_flush_that_found_nothing_says_so(services: list[str], externals: list[int], *, let_go: bool) -> None:
    answer = {
        "keeper": {"name": "orders.nacos", "services": services},
        "fronts": {str(slot): {"name": "orders.nacos", "externals": count} for slot, count in enumerate(externals)},
    }

    assert report.let_go(answer) == let_go
    assert report.flushed(answer).startswith("nothing to flush") != let_go


def test_a_flush_says_in_words_what_ended() -> None:
    services = ["public/DEFAULT_GROUP/orders", "public/DEFAULT_GROUP/Orders", "public/DEFAULT_GROUP/old"]
    keeper = {
        "name": "orders",
        "services": services,
        "ended": dict(zip(services, ("empty", "none", "none"), strict=True)),
        "forgotten": services[2:],
    }
    said = report.flushed({"keeper": keeper, "fronts": {"0": {"externals": 0}, "1": {"externals": 2}}}).splitlines()

    assert len(said) == 4
    assert said[0].startswith(f"{services[0]}: its protection (empty) ended")
    assert said[1].startswith(f"{services[1]}: it was not protected")
    assert said[2].startswith(f"{services[2]}: forgotten")
    assert said[3] == "front 1 forgot 2 kept answers of outside names"


def test_a_static_service_is_not_called_unconfirmed() -> None:
    service = {"namespace": "public", "group": "G", "service": "s", "source": "static", "instances": []}
    said = report.ask({"name": "s.nacos.", "type": "A", "rcode": "NOERROR", "service": service})

    assert "never" not in said
    assert "from the configuration" in said


def head(keeper: dict[str, object]) -> list[str]:
    return report.status({"supervisor": {}, "keeper": keeper}).partition("\n\n")[0].splitlines()


def spaces(**state: dict[str, object]) -> dict[str, object]:
    return {"registry": {"namespaces": {name: {"connected": True, **one} for name, one in state.items()}}}


REFUSED = {"refused": "403 user not found! (no nacos.username is set)", "last_error": "longer"}


@pytest.mark.parametrize(
    ("states", "line"),
    [
        ({"public": REFUSED}, "NACOS REFUSES: 403 user not found! (no nacos.username is set)"),
        ({"a": REFUSED, "b": {}}, "NACOS REFUSES: 403 user not found! (no nacos.username is set), namespace a"),
        ({"public": {"last_error": "login: down"}}, "NACOS FAILS: login: down"),
        ({"public": {"connected": False, "last_error": "gone"}}, "NO NACOS: gone"),
    ],
)
def test_the_head_of_status_says_what_nacos_refuses(states: dict[str, dict[str, object]], line: str) -> None:
    assert [one for one in head(spaces(**states)) if "NACOS" in one] == [line]


def test_the_head_of_status_tells_the_brake_or_else_the_protected_and_the_unhealthy() -> None:
    brake = {"services": 6, "known": 21, "kept": 18, "ends_s": 850.0}

    assert head({"brake": brake, "protected_count": 6})[-1] == (
        "BRAKE: 6 of 21 services lost most of their instances; 18 instances served all the same; "
        "nacosdns cache accept ends it, or time in 14 min"
    )
    assert head({"protected_count": 1, "unhealthy_count": 2})[-2:] == [
        "1 service answered otherwise than Nacos said last: see nacosdns services",
        "2 services without a healthy instance: see nacosdns doctor",
    ]
    assert len(head({"protected_count": 0, "unhealthy_count": 0})) == 3


def test_what_was_accepted_is_said_in_words() -> None:
    assert report.accepted({"accepted": 23}) == "23 instances let go: the brake is off"


# What lies in the future, and the head of status


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-21592.0, "clock?"), (-0.4, "0 s"), (0.0, "0 s"), (59.0, "59 s"), (7200.0, "2 h"), (None, "-")],
)
def test_no_age_is_negative(seconds: float | None, said: str) -> None:
    assert words.duration(seconds) == said


def test_what_was_confirmed_in_the_future_is_said_so() -> None:
    row = {"name": "orders.nacos", "age_s": -21592.0}
    service = {"source": "nacos", "confirmed_s": -21591.0, "protection": "empty", "protected_s": -5.0}
    told = report.ask({"name": "orders.nacos.", "type": "A", "rcode": "NOERROR", "service": service})

    assert "clock?" in report.services([row])
    assert "-2" not in report.services([row])
    assert "confirmed in the future (clock?), protected (empty) since in the future (clock?)" in told


def front(**facts: object) -> dict[str, object]:
    up = [{"address": "192.0.2.1:53", "health": "up"}]
    return {"upstreams": up, "upstreams_left_out": [], "forward_problem": "", "upstreams_wanted": True} | facts


LOOPED = {"address": "127.0.0.1:53", "why": "that is ourselves"}
FAILS = {"192.0.2.1:53": "said SERVFAIL"}
FLAPS = {
    "address": "192.0.2.1:53",
    "health": "up",
    "changes_10min": 6,
    "changed_s": 40.0,
    "last_error": "nothing listens there",
}
FLAPPED = "UPSTREAM FLAPS: 192.0.2.1:53 went down or came back 6 times in 10 min, last 40 s ago; it is up now, last error nothing listens there"


@pytest.mark.parametrize(
    ("fronts", "said"),
    [
        ([front()], []),
        ([front(files={"used": 25, "limit": 12})], ["NO FILES: front 3 has used all 12 files"]),
        ([front(files={"used": 11, "limit": 12})], []),
        (
            [front(hindered="Operation not permitted")],
            ["HINDERED: this host did not let front 3 work within the last 10 s: Operation not permitted"],
        ),
        (
            [front(upstreams=[], upstreams_left_out=[LOOPED], forward_problem="no upstream (127.0.0.1:53: it is us)")],
            ["NO UPSTREAM: 127.0.0.1:53: it is us"],
        ),
        ([front(upstreams=[], forward_problem="no upstream")], ["NO UPSTREAM: no file names one"]),
        ([front(upstreams=[], forward_problem="no upstream", upstreams_wanted=False)], []),
        ([front(), front(failing=FAILS)], ["UPSTREAMS FAIL: 192.0.2.1:53 said SERVFAIL"]),
        ([front(answered_s=200.0), front(failing=FAILS)], ["UPSTREAMS FAIL: 192.0.2.1:53 said SERVFAIL"]),
        ([front(answered_s=2.0), front(failing=FAILS)], []),
        (
            [front(upstreams=[FLAPS | {"changes_10min": 2}]), front(upstreams=[FLAPS])],
            [FLAPPED],
        ),
        ([front(upstreams=[FLAPS | {"changed_s": 121.0}])], []),
        ([front(upstreams=[FLAPS | {"changes_10min": 5}])], []),
        (
            [front(), front(failed_names=12, failed_last="a.example. (192.0.2.1:53 said SERVFAIL)")],
            [
                "NAMES FAIL: 12 outside names got no answer within 30 s, the last one a.example. (192.0.2.1:53 said SERVFAIL)"
            ],
        ),
        ([front(failed_names=9, failed_last="a.example. (192.0.2.1:53 said SERVFAIL)")], []),
        ([front(failed_names=12, failed_last="a (x)", failing=FAILS)], ["UPSTREAMS FAIL: 192.0.2.1:53 said SERVFAIL"]),
        ([{"error": "the front is down"}], []),
    ],
)
def test_the_head_of_status_says_how_outside_names_go(fronts: list[dict[str, object]], said: list[str]) -> None:
    answer = {"supervisor": {}, "fronts": {str(slot): facts for slot, facts in enumerate(fronts, 3)}}

    assert problems.found(answer) == said
    assert report.status(answer).partition("\n\n")[0].splitlines()[3:] == said


@pytest.mark.parametrize(
    ("child", "said"),
    [
        ({}, []),
        ({"failures": 1, "reason": "ended by SIGKILL"}, []),
        ({"failures": 3, "reason": "ended by SIGKILL"}, ["front 3 FAILS, 3 times in a row: ended by SIGKILL"]),
        ({"phase": "hangs"}, ["front 3 HANGS for 5 s, pid 7 does not come to it; it is replaced after 10 s"]),
        (
            {"phase": "hangs", "stopped": True},
            ["front 3 HANGS for 5 s, pid 7 is stopped: kill -CONT 7; it is replaced after 10 s"],
        ),
        ({"role": "keeper", "failures": 2, "reason": "x"}, ["keeper FAILS, 2 times in a row: x"]),
        ({"role": "keeper", "phase": "starting"}, ["keeper is starting"]),
        ({"phase": "down"}, ["front 3 is down"]),
        (
            {"phase": "starting", "failures": 1, "reason": "ended by SIGKILL"},
            ["front 3 is starting, it ended before: ended by SIGKILL"],
        ),
        ({"role": "web", "phase": "draining"}, []),
    ],
)
def test_the_head_of_status_says_which_process_fails_or_hangs(child: dict[str, object], said: list[str]) -> None:
    good = {"role": "front", "slot": 3, "pid": 7, "phase": "ready", "beat_age_s": 5.0, "failures": 0, "reason": ""}

    assert problems.found({"supervisor": {"children": [good | child]}}) == said


@pytest.mark.parametrize(
    ("child", "said"),
    [
        ({"role": "keeper"}, ["keeper is starting"]),
        ({"sockets": []}, []),
        ({"role": "web"}, []),
        ({"sockets": [], "failures": 1}, ["front 3 is starting"]),
    ],
)
def test_of_a_fresh_bridge_whoever_starts_last_is_not_named(child: dict[str, object], said: list[str]) -> None:
    one = {"role": "front", "slot": 3, "pid": 7, "phase": "starting", "beat_age_s": 0.1, "failures": 0, "reason": ""}
    answers = one | {"slot": 2, "phase": "ready", "sockets": [0]}
    children = [answers, one | child]

    assert problems.found({"supervisor": {"up_s": 2.0, "children": children}}) == said
    assert problems.found({"supervisor": {"up_s": 2.0, "children": [one]}}) == ["front 3 is starting"]


NEVER = "NOBODY ANSWERS: our own test query on 10.0.0.2:53 was never answered"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"canary_age_s": 0.4}, []),
        ({"canary_age_s": None}, [NEVER]),
        ({"canary_age_s": 40.0}, ["NOBODY ANSWERS: our own test query on 10.0.0.2:53 was answered last 40 s ago"]),
        ({"canary_age_s": None, "up_s": 2.0}, []),
        ({"canary_age_s": None, "listen": ["10.0.0.9:53"]}, ["waiting for 10.0.0.9:53"]),
        ({"canary_age_s": None, "covered": [0]}, ["NO FRONT on sockets 0: clients get SERVFAIL"]),
    ],
)
def test_the_head_of_status_says_that_nothing_comes_back_from_where_we_listen(
    own: dict[str, object], said: list[str]
) -> None:
    missing = ["10.0.0.9:53"] if "10.0.0.9:53" in own.get("listen", ()) else []
    good = {"up_s": 60.0, "listen": ["10.0.0.2:53"], "missing": missing, "covered": []}

    assert problems.found({"supervisor": good | own}) == said


@pytest.mark.parametrize(
    ("catalogues", "state", "said"),
    [
        ([("a", "G", 0), ("a", "H", 0)], {}, ["NACOS EMPTY: it lists no service at all in namespace a (group G, H)"]),
        ([("a", "G", 0), ("a", "H", 1)], {}, []),
        ([], {}, []),
        ([("a", "G", 0)], {"connected": False, "last_error": "gone"}, ["NO NACOS: gone"]),
        ([("a", "G", 0)], {"refused": "403"}, ["NACOS REFUSES: 403"]),
    ],
)
def test_the_head_of_status_says_that_nacos_lists_nothing(
    catalogues: list[tuple[str, str, int]], state: dict[str, object], said: list[str]
) -> None:
    rows = [{"namespace": name, "group": group, "listed": count} for name, group, count in catalogues]

    assert problems.found({"keeper": spaces(a=state) | {"catalogues": rows}}) == said


def test_the_head_of_status_says_which_files_are_refused_while_running() -> None:
    answer = {"supervisor": {"password": "p is empty"}, "keeper": {"static_file_refused": "s: not TOML"}}

    assert problems.found(answer) == [
        "STATIC FILE REFUSED: s: not TOML; what was read of it before holds",
        "NO PASSWORD: p is empty",
    ]


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({"error": "", "owed": 0, "not_used": ""}, []),
        ({"error": "disk is full", "owed": 41}, ["NO DISK: writes fail (disk is full), 41 are owed and tried again"]),
        ({"not_used": "cache.db has schema 99"}, ["NO DISK: cache.db has schema 99"]),
    ],
)
def test_the_head_of_status_says_what_the_disk_does_not_take(store: dict[str, object], said: list[str]) -> None:
    assert problems.found({"supervisor": {}, "keeper": {"store": store}}) == said


def test_the_head_of_status_and_the_problems_of_its_json_are_the_same_sentences() -> None:
    own = {
        "missing": ["docker0:53"],
        "covered": [3],
        "disk": "read-only",
        "web": "127.0.0.1:9353 is taken",
        "reload": {"at": time.time() + 9000, "refused": "no such key"},
    }
    found = problems.found({"supervisor": own})

    assert [line.split()[0] for line in found] == ["waiting", "NO", "NO", "NO", "RELOAD"]
    assert "in the future (clock?)" in found[-1]
    assert all(line in report.status({"supervisor": own}).splitlines() for line in found)


@pytest.mark.parametrize(
    ("protection", "said"),
    [
        ("empty", "Nacos names none of its instances since 15 s: they are kept until"),
        ("shrink", "Nacos does not name 2 of its instances since it came back: kept until its list was stable"),
        ("held", "one list took more of its instances than shrink_max: 2 kept 10 s until a fresh query agrees"),
        ("brake", "the brake is on: 1 instance kept behind those that Nacos names; nacosdns cache accept ends it"),
    ],
)
def test_ask_says_why_a_service_is_protected_and_what_ends_it(protection: str, said: str) -> None:
    service = {"protection": protection, "protected_s": 15.2, "unconfirmed": 2, "demoted": 1, "source": "push"}
    answer = {"name": "orders.nacos.", "type": "A", "service": service, "why": ["another reason"]}
    lines = report.ask(answer).splitlines()
    why = lines[lines.index("why") + 1 :]

    assert why[0].strip() == "another reason"
    assert said in why[1]
    assert ("nacosdns cache flush orders.nacos ends it" in why[1]) == (protection != "brake")


def test_ask_gives_no_reason_for_what_is_not_protected() -> None:
    service = {"protection": "none", "source": "push"}

    assert "why" not in report.ask({"name": "orders.nacos.", "type": "A", "service": service}).splitlines()


def test_status_does_not_say_that_it_listens_where_it_waits() -> None:
    own = {"listen": ["127.0.0.1:53", "192.0.2.7:53"], "missing": ["192.0.2.7:53"]}
    lines = report.status({"supervisor": own}).splitlines()

    assert "listening on 127.0.0.1:53" in lines
    assert "waiting for 192.0.2.7:53" in lines


def test_a_process_that_never_started_has_no_heartbeat() -> None:
    child = {
        "role": "web",
        "slot": 2,
        "phase": "down",
        "sockets": [],
        "beat_age_s": 7003.6,
        "failures": 0,
        "reason": "",
    }
    said = report.status({"supervisor": {"children": [child | {"pid": 0}, child | {"pid": 7, "beat_age_s": 0.4}]}})

    assert "7003.6" not in said
    assert "0.4 s" in said


# The exit code of status


def bridge(*, up_s: float = 60.0, canary_age_s: float | None = 0.5, **phases: str) -> dict[str, object]:
    roles = {"keeper": "keeper", "web": "web", "reader": "front", "standby": "front"}
    children = [
        {
            "role": role,
            "slot": slot,
            "pid": 7,
            "phase": phases.get(name, "ready"),
            "sockets": [0] if name == "reader" else [],
            "failures": 0,
            "beat_age_s": 4.0,
        }
        for slot, (name, role) in enumerate(roles.items(), 1)
    ]
    own = {"up_s": up_s, "canary_age_s": canary_age_s, "listen": ["127.0.0.1:53"], "missing": [], "covered": []}
    return {"supervisor": own | {"children": children}, "keeper": {}, "fronts": {}}


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (bridge(), True),
        (bridge(web="hangs"), False),
        (bridge(keeper="hangs"), False),
        (bridge(standby="hangs"), False),
        (bridge(web="down"), False),
        (bridge(standby="starting"), False),
        (bridge(keeper="starting"), False),
        (bridge(keeper="starting", up_s=1.0), False),
        (bridge(standby="starting", web="down", up_s=1.0), True),
        (bridge(reader="draining"), True),
        (bridge(canary_age_s=None), False),
        (bridge(canary_age_s=None, up_s=1.0), True),
    ],
)
def test_status_is_exit_1_exactly_where_its_head_says_that_a_part_is_away(answer, whole) -> None:
    assert commands.is_whole(answer) is whole
    assert (problems.found(answer) == []) is whole


def test_a_bridge_that_starts_is_not_whole_before_a_front_reads() -> None:
    answer = bridge(canary_age_s=None, up_s=1.0)
    answer["supervisor"]["children"][2]["sockets"] = []

    assert not commands.is_whole(answer)

    answer["supervisor"]["missing"] = answer["supervisor"]["listen"]  # nobody could ask it

    assert commands.is_whole(answer)


# Words and widths


def test_counts_have_the_right_number_of_words() -> None:
    def said(*severities: str) -> str:
        rows = [{"severity": word, "id": "a", "seen": "b", "todo": "", "command": ""} for word in severities]
        return report.findings(rows, ()).splitlines()[-1]

    assert said("error", "warning", "warning", "ok") == "1 error, 2 warnings, 1 good"
    assert said("error", "error", "warning") == "2 errors, 1 warning, 0 good"


def test_a_long_name_does_not_make_every_line_of_services_long() -> None:
    service, name = "a" * 200 + "-end", "(" + "'b'" * 70 + " has 210 bytes; a part of a name holds 63)"
    said = report.services([{"service": service, "name": name}, {"service": "orders", "name": "orders.nacos."}])

    assert max(map(len, said.splitlines())) < 220
    assert "has 210 bytes; a part of a name holds 63)" in said
    assert "aaaaaaaaaa…aaaaa" in said
    assert "-end" in said


def test_services_that_only_letter_case_tells_apart_stand_below_the_table() -> None:
    spelled = {"orders": ["Orders", "ORDERS"], "Orders": ["orders", "ORDERS"], "users": []}
    rows = [
        {"name": "n.", "service": service, "group": "G", "namespace": "public", "spellings": others}
        for service, others in spelled.items()
    ]

    assert report.services(rows).splitlines()[4:] == [
        "",
        "one name means ORDERS, Orders and orders (public/G): names of DNS do not tell letter case; see nacosdns doctor",
    ]
