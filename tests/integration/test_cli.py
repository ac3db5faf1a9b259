from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.loop import on_a_loop
from fakes.nacos_server import FakeNacos
from fakes.running import Bridge, free_port, until
from nacosdns import cli, commands, config_load, report
from nacosdns.config import Cache
from nacosdns.core.words import duration
from nacosdns.edge import standing
from nacosdns.edge.standing import strays
from nacosdns.errors import ConfigError

STATIC = """
[nacos]
servers = []
[[static]]
name = "orders"
instances = [{ ip = "10.0.0.1", port = 80, weight = 1.0 }, { ip = "10.0.0.2", port = 81, weight = 3.0 }]
"""


def nacosdns(*words: str, seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nacosdns.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The whole program with static services and no Nacos; asked by ``whole(*words)``."""
    running = Bridge(tmp_path_factory.mktemp("whole"), text=STATIC, modules={}).up()
    until(lambda: "sockets=[0]" in "".join(running.said("front.reads")))

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return nacosdns(*words, "-c", str(running.file))

    until(lambda: ask("ask", "orders.nacos").returncode == 0, 20.0, "the first answer")
    yield ask
    running.close()


def test_ask_shows_the_answer_the_service_and_its_instances(whole):
    done = whole("ask", "orders.nacos")

    assert done.returncode == 0
    assert "orders.nacos. A: NOERROR, from static" in done.stdout
    assert re.search(r"10\.0\.0\.2 +81 +3 +yes +yes +DEFAULT", done.stdout)
    assert "service public/DEFAULT_GROUP/orders" in done.stdout


def test_ask_gives_the_same_as_json(whole):
    answer = json.loads(whole("ask", "orders.nacos", "SRV", "--json").stdout)

    assert answer["rcode"] == "NOERROR"
    assert sorted(record["data"].split()[1] for record in answer["answers"]) == ["1", "3"]
    assert [instance["port"] for instance in answer["service"]["instances"]] == [80, 81]


@pytest.mark.parametrize(("name", "kind"), [("nothere.nacos", "A"), ("orders.nacos", "AAAA")])
def test_an_answer_without_a_record_is_exit_1_and_says_why(whole, name, kind):
    done = whole("ask", name, kind)

    assert done.returncode == 1
    assert "SOA" in done.stdout


@pytest.mark.parametrize("words", [("ask", "a..nacos"), ("ask", "orders.nacos", "NOTYPE")])
def test_a_question_that_is_none_is_one_line_and_exit_2(whole, words):
    done = whole(*words)

    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_services_and_status_are_tables_for_people_and_data_for_programs(whole):
    services = whole("services")
    status = whole("status")

    assert re.search(
        r"^orders\.nacos\. +orders +DEFAULT_GROUP +public +2 +2 +none +static", services.stdout, re.MULTILINE
    )
    assert json.loads(whole("services", "--json").stdout)[0]["service"] == "orders"
    assert status.returncode == 0
    assert len(re.findall(r"^(?:keeper|web|front) +\d+ +\d+ +ready", status.stdout, re.MULTILINE)) == 4
    assert json.loads(whole("status", "--json").stdout)["supervisor"]["covered"] == []


def test_more_services_than_a_page_holds_are_listed_in_order(tmp_path) -> None:
    from fakes.running import Bridge  # noqa: PLC0415  # likewise

    names = [f"svc-{number:03}" for number in range(450)]
    entries = (f'[[static]]\nname = "{name}"\ninstances = [{{ ip = "10.0.0.1", port = 80 }}]\n' for name in names[::-1])
    running = Bridge(tmp_path, text="[nacos]\nservers = []\n" + "".join(entries), modules={}).up()
    try:
        until(lambda: nacosdns("services", "-c", str(running.file)).returncode == 0, 20.0, "the keeper")
        listed = json.loads(nacosdns("services", "--json", "-c", str(running.file)).stdout)
        everywhere = json.loads(nacosdns("services", "--all", "--json", "-c", str(running.file)).stdout)
    finally:
        running.close()

    assert [row["service"] for row in listed] == names
    assert [row["service"] for row in everywhere] == names


def test_the_cache_is_listed_and_a_flush_of_what_is_not_kept_is_a_no(whole):
    listed = whole("cache", "list", "--json")
    flushed = whole("cache", "flush", "orders.nacos", "--json")

    assert json.loads(listed.stdout) == []
    assert flushed.returncode == 1
    assert json.loads(flushed.stdout)["keeper"] == {
        "name": "orders.nacos",
        "services": [],
        "ended": {},
        "forgotten": [],
    }
    assert "nothing to flush" in whole("cache", "flush", "orders.nacos").stdout


def test_accepting_nothing_is_a_no(whole):
    done = whole("cache", "accept")

    assert done.returncode == 1
    assert "nothing to accept" in done.stderr


# Without a running bridge


def test_a_bridge_that_does_not_run_is_exit_1_and_says_so(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(f'[cache]\ndir = "{tmp_path}"')
    done = nacosdns("status", "-c", str(file), "--json")

    assert done.returncode == 1
    assert "is not running" in done.stderr
    assert "is not running" in json.loads(done.stdout)["error"]


@pytest.fixture
def running(tmp_path):
    """The whole program for one test."""
    started = Bridge(tmp_path, text=STATIC, modules={}).up()
    yield started
    started.close()


def test_commands_find_the_bridge_whose_file_is_gone(running, tmp_path):
    file = ("-c", str(running.file))
    until(lambda: nacosdns("ask", "orders.nacos", *file).returncode == 0, what="an answer")
    running.file.rename(tmp_path / "away.toml")
    (tmp_path / "inner").mkdir()
    status, services, by_another_way = (
        nacosdns(*words)
        for words in (("status", *file), ("services", *file), ("services", "-c", f"{tmp_path}/inner/../bridge.toml"))
    )
    doctor = nacosdns("doctor", "--json", *file)
    report = {finding["id"]: finding for finding in json.loads(doctor.stdout)["findings"]}

    assert "orders" in services.stdout
    assert services.returncode == by_another_way.returncode == 0
    assert "listening on" in status.stdout
    assert status.stderr == (
        f"nacosdns: {running.file}: cannot be read (No such file or directory);"
        f" the bridge at {running.directory}, which runs on what was read before, is asked\n"
    )
    assert "bridge.canary" in report
    assert "cannot be read" in report["config.file"]["seen"]


def test_the_usual_file_that_is_gone_means_the_bridge_that_was_started_with_it(running, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "DEFAULT_PATH", str(running.file))
    monkeypatch.setenv("NACOSDNS_CACHE_DIR", str(tmp_path / "nowhere"))
    running.file.unlink()
    code = cli.main(["services"])
    said = capsys.readouterr()
    cli.main(["doctor", "--json"])
    report = {finding["id"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}

    assert code == 0
    assert "bridge.canary" in report
    assert "orders" in said.out
    assert said.err.startswith(f"nacosdns: {running.file} is not there; the bridge at {running.directory}, ")


def test_a_bridge_of_another_file_is_not_taken_for_the_one_that_is_gone(running, tmp_path):
    missing, file = tmp_path / "missing.toml", tmp_path / "x.toml"
    file.write_text(f'[cache]\ndir = "{tmp_path}"')
    done, elsewhere = nacosdns("status", "-c", str(missing)), nacosdns("status", "-c", str(file))
    file.write_text(running.file.read_text().replace(str(running.directory), str(tmp_path)))
    file.rename(running.file)
    moved = nacosdns("status", "-c", str(running.file))

    assert done.returncode == 2
    assert "cannot be read (No such file or directory); name a configuration" in done.stderr
    assert elsewhere.returncode == moved.returncode == 1
    assert re.search(f"(another nacosdns runs|others run) on .*{running.directory}", elsewhere.stderr)
    assert f"it runs on {running.directory}, and keeps its cache.dir until it is restarted" in moved.stderr


def test_a_bridge_at_the_usual_place_is_taken_unless_it_has_another_file(running, tmp_path, monkeypatch, capsys):
    for module in (commands, config_load):
        monkeypatch.setattr(module, "Cache", lambda: Cache(dir=str(running.directory)))
    mistyped = cli.main(["services", "-c", str(tmp_path / "mistyped.toml")])
    refused = capsys.readouterr().err
    running.file.unlink()
    monkeypatch.setattr(standing, "command_line", lambda _: ([], ""))  # as where /proc is hidden from us
    hidden = cli.main(["services", "-c", str(running.file)])

    assert (mistyped, hidden) == (2, 0)
    assert "mistyped.toml: cannot be read" in refused
    assert "orders" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_that_is_shut_to_us_is_for_root_to_read(tmp_path):
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o700)
    script = "import os, sys\nfrom nacosdns import cli\nos.setuid(65534)\nsys.exit(cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "status", "-c", str(shut / "x.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "cannot be read (Permission denied); run this as root" in done.stderr


def test_check_praises_a_good_configuration_and_shows_what_it_means(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('[server]\nuser = ""\n[[zone]]\nname = "corp."\nnamespace = "p"\n[namespaces]\np = "33ea"\n')
    done = nacosdns("check", "-c", str(file))
    as_json = json.loads(nacosdns("check", "-c", str(file), "--json").stdout)

    assert done.returncode == 0
    assert done.stdout.startswith("good\n")
    assert as_json["namespaces"] == ["33ea"]


def test_check_names_file_line_key_and_remedy_of_a_fault(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text("[server]\n\nlissten = 3\n")
    done = nacosdns("check", "-c", str(file), "--json")

    assert done.returncode == 2
    assert done.stderr == f'nacosdns: {file}:3: server.lissten: is not a known key; did you mean "listen"?\n'
    fault = json.loads(done.stdout)
    assert (fault["line"], fault["key"], fault["remedy"]) == (3, "server.lissten", 'did you mean "listen"?')


def test_check_reads_the_password_and_the_static_file_too(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('[nacos]\nusername = "n"\npassword_file = "/nonexistent"\n')
    assert nacosdns("check", "-c", str(file)).returncode == 2

    static = tmp_path / "static.toml"
    static.write_text('[[static]]\nnam = "a"\n')
    file.write_text(f'static_file = "{static}"\n[server]\nuser = ""\n')
    done = nacosdns("check", "-c", str(file))

    assert done.returncode == 2
    assert f"{static}:2: static.nam" in done.stderr

    static.write_text('[[static]]\nname = "a"\ninstances = [{ ip = "10.0.0.1", port = 80 }]\n')
    done = nacosdns("check", "-c", str(file), "--json")

    assert json.loads(done.stdout)["static_services"] == 1


def test_check_says_what_run_would_say_of_a_user_and_a_group_that_this_host_lacks(tmp_path):
    file = tmp_path / "x.toml"
    where = f'[cache]\ndir = "{tmp_path / "state"}"\n[server]\nlisten = ["127.0.0.1:{free_port()}"]\n'
    keys = {'user = ""\ncontrol_group = "no-such"': (6, "the group no-such does not exist")}
    if os.geteuid() == 0:  # nobody else changes the user
        keys['user = "no-such"'] = (5, "the user no-such does not exist")
    for text, (line, said) in keys.items():
        file.write_text(where + text + "\n")
        checked, ran = nacosdns("check", "-c", str(file)), nacosdns("run", "-c", str(file))

        assert (checked.returncode, ran.returncode) == (2, 2)
        assert f"{file}:{line}: server." in checked.stderr
        assert said in checked.stderr
        assert said in ran.stderr


@pytest.fixture
def tls(tmp_path) -> dict[str, Path]:
    """A certificate that signs itself, its key, and the key of somebody else."""
    files = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "other")}
    for key in ("other", "key"):
        made = ["-keyout", str(files[key]), "-out", str(files["cert"]), "-subj", "/CN=test", "-newkey", "rsa:2048"]
        subprocess.run(["openssl", "req", "-x509", "-nodes", *made], check=True, capture_output=True)
    return files


def with_tls(tls: dict[str, Path], **instead: str) -> str:
    files = {"ca_file": tls["cert"], "cert_file": tls["cert"], "key_file": tls["key"]} | instead
    return "".join(f'{key} = "{file}"\n' for key, file in files.items())


@pytest.mark.parametrize(
    ("key", "named", "line", "said"),
    [
        ("ca_file", "/nonexistent/ca.pem", 5, "nacos.ca_file: /nonexistent/ca.pem cannot be read (No such file"),
        ("cert_file", "/nonexistent/c.pem", 6, "nacos.cert_file: /nonexistent/c.pem cannot be read (No such file"),
        ("key_file", "/", 7, "nacos.key_file: / cannot be read (Is a directory)"),
        ("ca_file", "key", 5, "nacos.ca_file: "),
        ("key_file", "other", 6, "cannot be loaded (key values mismatch)"),
    ],
)
def test_check_loads_the_certificates_for_nacos(tmp_path, tls, key, named, line, said):
    file = tmp_path / "x.toml"
    file.write_text(f'[server]\nuser = ""\n[nacos]\nservers = []\n{with_tls(tls)}')
    good = nacosdns("check", "-c", str(file))
    file.write_text(f'[server]\nuser = ""\n[nacos]\nservers = []\n{with_tls(tls, **{key: tls.get(named, named)})}')
    done = nacosdns("check", "-c", str(file))

    assert good.returncode == 0
    assert done.returncode == 2
    assert done.stderr.startswith(f"nacosdns: {file}:{line}: nacos.")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_plugins_lists_every_balancer_with_its_package():
    rows = {row["balancer"]: row for row in json.loads(nacosdns("plugins", "--json").stdout)}

    assert {"weighted", "random", "round_robin", "hash"} <= rows.keys()
    assert rows["weighted"]["class"] == "nacosdns.core.balance:Weighted"


@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
@pytest.mark.parametrize(
    "words", ["plugins", "plugins --json", "check", "doctor", "resolvconf show", "--version", "-h"]
)
def test_an_answer_that_cannot_be_said_is_one_line_and_exit_1(tmp_path, words, where):
    (tmp_path / "x.toml").write_text('[server]\nuser = ""\n')
    file = "" if words.startswith("-") else f"-c {tmp_path / 'x.toml'}"
    command = f"{sys.executable} -m nacosdns.cli {words} {file} {where}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=30)
    reason = "No space left on device" if "full" in where else "Bad file descriptor"

    assert done.returncode == 1
    assert done.stderr == f"nacosdns: standard output does not take the answer ({reason})\n"


def test_a_fault_is_said_by_the_exit_code_where_nothing_else_can_be_said(tmp_path):
    command = f"{sys.executable} -m nacosdns.cli status --json -c {tmp_path / 'none.toml'} >&- 2>&-"

    assert subprocess.run(["sh", "-c", command], check=False, timeout=30).returncode == 2


def test_wrong_use_is_exit_2_with_the_usage():
    done = nacosdns("dance")

    assert done.returncode == 2
    assert "usage: nacosdns" in done.stderr


def test_run_refuses_a_wrong_configuration_in_one_line(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text("[server]\nfronts = 0\n")
    done = nacosdns("run", "-c", str(file))

    assert done.returncode == 2
    assert done.stderr.startswith(f"nacosdns: {file}:2: server.fronts: ")
    assert len(done.stderr.splitlines()) == 1


# register


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ((), "--ip"),
        (("--ip", "10.0.0.1"), "--port"),
        (("--ip", "10.0.0.1", "--port", "70000"), "--port"),
        (("--ip", "db.example.com", "--port", "1"), "--ip"),
        (("--ip", "10.0.0.1", "--ip", "10.0.0.2", "--port", "1", "--port", "2", "--port", "3"), "--port"),
        (("--instance", "10.0.0.1"), "--instance"),
        (("--instance", "10.0.0.1:1@heavy"), "--instance"),
        (("--instance", "10.0.0.1:1", "--meta", "zone"), "--meta"),
        (("--instance", "10.0.0.1:1", "--probe", "icmp"), "--probe"),
        (("--instance", "10.0.0.1:1", "--probe", "http:health"), "--probe"),
    ],
)
def test_register_names_the_option_that_is_wrong(words, key):
    from nacosdns import registering  # noqa: PLC0415  # brings the SDK along, which warns at its import
    from nacosdns.config import Config  # noqa: PLC0415

    arguments = cli.parser().parse_args(["register", "db", *words])
    with pytest.raises(ConfigError) as caught:
        registering.wish(arguments, Config())

    assert caught.value.key == key
    assert caught.value.remedy


def test_register_takes_instances_in_every_spelling():
    from nacosdns import registering  # noqa: PLC0415
    from nacosdns.config import Config  # noqa: PLC0415

    words = "register db --ip 10.0.0.1 --ip 10.0.0.2 --port 80 --instance [2001:db8::1]:81@2.5 --meta b=2 --meta a=1"
    arguments = cli.parser().parse_args([*words.split(), "--namespace", "prod", "--group", "pay", "--weight", "4"])
    config = Config(namespaces={"prod": "33ea"}, groups={"pay": "com.example.PAY"})
    wish = registering.wish(arguments, config)

    assert str(wish.service) == "33ea/com.example.PAY/db"
    assert [(i.address, i.port, i.weight) for i in wish.instances] == [
        ("2001:db8::1", 81, 2.5),
        ("10.0.0.1", 80, 4.0),
        ("10.0.0.2", 80, 4.0),
    ]
    assert wish.instances[0].metadata == (("a", "1"), ("b", "2"))


@on_a_loop
async def test_register_holds_its_instances_until_told_to_stop(tmp_path):
    async with FakeNacos().running() as nacos:
        file = Path(tmp_path, "x.toml")
        file.write_text(f'[nacos]\nservers = ["{nacos.address}"]\n')
        words = ["register", "db", "--instance", "10.0.0.1:3306", "--instance", "10.0.0.2:3306", "-c", str(file)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "nacosdns.cli", *words, stderr=asyncio.subprocess.DEVNULL
        )
        key = ("public", "DEFAULT_GROUP", "db")
        async with asyncio.timeout(20):
            while len(nacos.hosts(key)) < 2:
                await asyncio.sleep(0.05)
        for number in (*strays(), signal.SIGUSR2):
            process.send_signal(number)
        process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 10)

        assert code == 0
        assert nacos.hosts(key) == []


# Text for people


def test_a_table_stands_in_columns():
    rows = [
        {"name": "a", "size": 5, "ok": True},
        {"name": "long", "size": 1000, "ok": False},
        {"name": None, "size": 1.5},
    ]

    assert report.table(rows, [("name", "name"), ("size", "bytes"), ("ok", "ok")]) == [
        "NAME  BYTES  OK",
        "a         5  yes",
        "long   1000  no",
        "-       1.5  -",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "-"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (400000, "5 d")],
)
def test_durations_have_one_unit(seconds, said):
    assert duration(seconds) == said
