from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns import config as configuration
from nacosdns.config import Config, host_port
from nacosdns.config_load import Source, cache_dir_alone, find_lines, load, load_static, read_password
from nacosdns.core.model import Instance, NoneHealthy, ServiceKey
from nacosdns.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "nacosdns.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refused(tmp_path: Path, text: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), environ)
    return caught.value


def test_an_empty_file_gives_every_default(tmp_path):
    config = load(written(tmp_path, ""), {})

    assert config == Config() == load(None, {})


def test_every_section_reaches_its_place(tmp_path):
    config = load(
        written(
            tmp_path,
            """
            static_file = "/etc/nacosdns/static.toml"
            [server]
            listen = ["127.0.0.1:53", "[::1]:53", "docker0:53"]
            fronts = 2
            [nacos]
            servers = ["10.0.0.5:8848", "nacos.example.com:8848"]
            [[zone]]
            name = "nacos.internal"
            namespace = "prod"
            [[zone]]
            name = "test.internal."
            bare_names = true
            bare_allow = ["single-label", "*.db.example.com"]
            [namespaces]
            prod = "33ea21bc"
            [groups]
            pay = "com.example.PAY"
            [policy]
            answers = 3
            [policy."mysql-*"]
            kind = "primary"
            [cache]
            dir = "/tmp/x"
            [forward]
            upstreams = ["192.0.2.53", "[2001:db8::1]:53"]
            [web]
            listen = ""
            [log]
            queries = "1/100"
            [[static]]
            name = "orders"
            instances = [{ ip = "10.0.0.1", port = 80, metadata = { b = "2", a = "1" } }]
            """,
        ),
        {},
    )

    assert config.server.listen == ("127.0.0.1:53", "[::1]:53", "docker0:53")
    assert config.server.fronts == 2
    assert [zone.name for zone in configuration.zones(config)] == [
        b"\x05nacos\x08internal\0",
        b"\x04test\x08internal\0",
    ]
    assert [zone.namespace for zone in configuration.zones(config)] == ["33ea21bc", "public"]
    assert configuration.namespaces(config) == ("33ea21bc", "public")
    assert config.policies["mysql-*"].answers == 3
    key, view = next(iter(configuration.static_services(config).items()))
    assert key == ServiceKey("public", "DEFAULT_GROUP", "orders")
    assert view.instances == (Instance("10.0.0.1", 80, metadata=(("a", "1"), ("b", "2"))),)
    assert config.static_file == "/etc/nacosdns/static.toml"


@pytest.mark.parametrize(
    ("text", "line", "key", "says"),
    [
        ('[server]\nlissten = ["127.0.0.1:53"]', 2, "server.lissten", 'did you mean "listen"?'),
        ("[servers]\nfronts = 1", 1, "servers", 'did you mean "server"?'),
        ("fronts = 1", 1, "fronts", 'did you mean "server.fronts"?'),
        ('\n[[zone]]\nname = "a"\n\n[[zone]]\nnam = "b"', 6, "zone.nam", 'did you mean "name"?'),
        ("[policy]\n[policy.orders]\nttl = 1", 3, "policy.orders.ttl", 'did you mean "ttl_s"?'),
        ('[[static]]\nname = "a"\ninstances = [{ ip = "10.0.0.1", prt = 1 }]', 3, "static.instances.prt", '"port"'),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest_one(tmp_path, text, line, key, says):
    error = refused(tmp_path, text)

    assert (error.line, error.key) == (line, key)
    assert says in str(error)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("[server\n", 1, ""),
        ("[server]\nfronts = 1\nfronts = 2\n", 3, ""),
        ('[server]\nlisten = "127.0.0.1:53"', 2, "server.listen"),
        ('[server]\nlisten = [\n  "127.0.0.1:53",\n  3,\n]', 2, "server.listen"),
        ('[server]\n# a comment\nfronts = "2"', 3, "server.fronts"),
        ("[server]\nfronts = 0", 2, "server.fronts"),
        ("[server]\nfronts = 65", 2, "server.fronts"),
        ("[server]\nlisten = []", 2, "server.listen"),
        ('[server]\nlisten = ["127.0.0.1"]', 2, "server.listen"),
        ('[server]\nlisten = ["127.0.0.1:0"]', 2, "server.listen"),
        ('[server]\nlisten = ["::1:53"]', 2, "server.listen"),
        ('[server]\nlisten = ["[::1:53"]', 2, "server.listen"),
        ('[server]\nlisten = ["localhost:53"]', 2, "server.listen"),
        ('[server]\nlisten = ["300.0.0.1:53"]', 2, "server.listen"),
        ('[server]\nlisten = ["127.0.0.1:53", "127.0.0.1:53"]', 2, "server.listen"),
        ('[server]\nallow = ["10.0.0.1/8"]', 2, "server.allow"),
        ('[server]\nallow = ["everyone"]', 2, "server.allow"),
        ('server = "127.0.0.1"', 1, "server"),
        ('[nacos]\nservers = ["http://10.0.0.5:8848"]', 2, "nacos.servers"),
        ('[nacos]\nservers = ["[::1]:8848"]', 2, "nacos.servers"),
        ('[nacos]\nservers = ["10.0.0.5"]', 2, "nacos.servers"),
        ('[nacos]\nca_file = "/etc/ca.pem"', 1, "nacos.cert_file"),
        ('[nacos]\npassword_file = "/etc/secret"', 1, "nacos.username"),
        ('[nacos]\npreload = ["orders.example.com"]', 2, "nacos.preload"),
        ('[[zone]]\nname = "."', 2, "zone.name"),
        ('[[zone]]\nname = ""', 2, "zone.name"),
        ('[[zone]]\nname = "a..b"', 2, "zone.name"),
        (f'[[zone]]\nname = "{"x" * 64}"', 2, "zone.name"),
        ('[[zone]]\nname = "nacos"\n[[zone]]\nname = "NACOS."', 4, "zone.name"),
        ('[[zone]]\nname = "a"\nbare_names = true\n[[zone]]\nname = "b"\nbare_names = true', 6, "zone.bare_names"),
        ('[[zone]]\nbare_allow = ["example.com"]', 2, "zone.bare_allow"),
        ('zone = "nacos"', 1, "zone"),
        ("zone = []", 1, "zone"),
        ('[namespaces]\n"a.b" = "33ea21bc"', 2, 'namespaces."a.b"'),
        ('[namespaces]\na = "b"\nb = "33ea21bc"', 2, "namespaces.a"),
        ('[namespaces]\npublic = "33ea21bc"', 2, "namespaces.public"),
        ('[policy]\nanswers = "some"', 2, "policy.answers"),
        ("[policy]\nanswers = 0", 2, "policy.answers"),
        ('[policy]\nkind = "leader"', 2, "policy.kind"),
        ('[policy]\nbalancer = "nearest"', 2, "policy.balancer"),
        ('[policy]\nnone_healthy = "some"', 2, "policy.none_healthy"),
        ("[policy]\ngrpc_config = '{'", 2, "policy.grpc_config"),
        ("[policy]\ngrpc_config = '[]'", 2, "policy.grpc_config"),
        ('[policy]\naccept_before = "2026-11-29"', 2, "policy.accept_before"),
        ('[policy."a-*"]\naccept_before = "2026-11-29T20:00:00Z"', 2, 'policy."a-*".accept_before'),
        ("[policy]\nshrink_max = 0", 2, "policy.shrink_max"),
        ('[cache]\ndir = "state"', 2, "cache.dir"),
        ('[forward]\nupstreams = ["tls://192.0.2.53"]', 2, "forward.upstreams"),
        ('[forward]\nupstreams = ["dns.example.com"]', 2, "forward.upstreams"),
        ('[server]\nlisten = ["0.0.0.0:53", "127.0.0.1:53"]', 2, "server.listen"),
        ('[server]\nlisten = ["[::1]:53", "[::]:53"]', 2, "server.listen"),
        ('[server]\nlisten = ["eth0:53", "[::]:53"]', 2, "server.listen"),
        ('[server]\nlisten = ["0.0.0.0:53"]\n[web]\nlisten = "127.0.0.1:53"', 4, "web.listen"),
        ('[web]\nlisten = "9353"', 2, "web.listen"),
        ('[web]\nlisten = "localhost:9353"', 2, "web.listen"),
        ('[log]\nlevel = "loud"', 2, "log.level"),
        ('[log]\nqueries = "1/0"', 2, "log.queries"),
        ("[[static]]\ninstances = []", 1, "static.name"),
        ('[[static]]\nname = ""', 2, "static.name"),
        ('[[static]]\nname = "a"\n[[static]]\nname = "a"', 2, "static.name"),
        ('[[static]]\nname = "a"\ninstances = [{ ip = "a b" }]', 3, "static.instances"),
        ('[[static]]\nname = "a"\ninstances = [{ port = 80 }]', 3, "static.instances.ip"),
    ],
)
def test_a_wrong_value_is_an_error_with_file_line_key_and_remedy(tmp_path, text, line, key):
    error = refused(tmp_path, text)

    assert error.file.endswith("nacosdns.toml")
    assert (error.line, error.key) == (line, key)
    assert error.what
    assert error.remedy


@pytest.mark.parametrize(
    "listen",
    [
        '"0.0.0.0:53", "[::]:53"',
        '"0.0.0.0:53", "127.0.0.1:5353"',
        '"0.0.0.0:53", "[::1]:53"',
        '"eth0:53", "127.0.0.1:53"',
    ],
)
def test_addresses_that_do_not_overlap_are_good(tmp_path, listen):
    config = load(written(tmp_path, f'[server]\nlisten = [{listen}]\n[web]\nlisten = "127.0.0.1:9353"'), {})

    assert len(config.server.listen) == 2


def test_a_file_at_the_usual_place_has_to_stay_once_it_was_read(tmp_path):
    usual = tmp_path / "nacosdns.toml"
    source = Source(None, {}, str(usual))
    defaults = source.read()
    usual.write_text("[server]\nfronts = 3")
    found = source.read()
    usual.unlink()

    assert (defaults.server.fronts, found.server.fronts) == (1, 3)
    with pytest.raises(ConfigError, match="cannot be read"):
        source.read()


@pytest.mark.parametrize(
    ("text", "environ", "place"),
    [
        ('[cache]\ndir = "/a"\n[server', {}, "/a"),
        ('cache.dir = "/a"\n= 3', {}, "/a"),
        ('[cache]\ndir = "/a"', {"NACOSDNS_CACHE_DIR": "/b"}, "/b"),
        ("[cache]\ndir = /a", {}, "/var/lib/nacosdns"),
        ("[cache]\ndir = 3", {}, "/var/lib/nacosdns"),
        ("\0", {}, "/var/lib/nacosdns"),
    ],
)
def test_the_state_directory_is_read_alone_where_the_rest_is_bad(tmp_path, text, environ, place):
    assert cache_dir_alone(written(tmp_path, text), environ) == place
    assert cache_dir_alone(str(tmp_path / "none"), {}) == "/var/lib/nacosdns"


def test_a_missing_file_says_how_to_name_one(tmp_path):
    with pytest.raises(ConfigError, match="-c FILE"):
        load(str(tmp_path / "none.toml"), {})


def test_the_environment_beats_the_file(tmp_path):
    config = load(
        written(tmp_path, "[server]\nfronts = 3\n[policy]\nttl_s = 9\n[policy.orders]\nanswers = 1"),
        {
            "NACOSDNS_SERVER_LISTEN": "127.0.0.1:5353, [::1]:5353",
            "NACOSDNS_SERVER_FRONTS": "2",
            "NACOSDNS_ZONE_NAME": "corp.internal",
            "NACOSDNS_ZONE_BARE_NAMES": "true",
            "NACOSDNS_POLICY_TTL_S": "5",
            "NACOSDNS_POLICY_ANSWERS": "2",
            "NACOSDNS_POLICY_NONE_HEALTHY": "nodata",
            "NACOSDNS_STATIC_FILE": "/etc/static.toml",
        },
    )

    assert config.server.listen == ("127.0.0.1:5353", "[::1]:5353")
    assert config.server.fronts == 2
    assert config.zones[0].name == "corp.internal"
    assert config.zones[0].bare_names
    assert configuration.policies(config).resolve("orders").ttl_s == 5
    assert configuration.policies(config).base.answers == 2
    assert config.policy.none_healthy is NoneHealthy.NODATA
    assert config.static_file == "/etc/static.toml"


def test_an_unknown_variable_of_a_known_section_is_an_error(tmp_path):
    error = refused(tmp_path, "", NACOSDNS_SERVER_LISTN="127.0.0.1:53")

    assert str(error) == 'environment: NACOSDNS_SERVER_LISTN: is not a known key; did you mean "listen"?'


def test_a_wrong_variable_is_named_itself(tmp_path):
    error = refused(tmp_path, "", NACOSDNS_SERVER_FRONTS="many")

    assert (error.file, error.line, error.key) == ("environment", 0, "NACOSDNS_SERVER_FRONTS")


def test_variables_of_others_do_no_harm(tmp_path):
    others = {"NACOSDNS_REQUIRE_REAL": "1", "NACOSDNS_WEB_SERVICE_HOST": "10.0.0.1", "NACOSDNS_WEB_PORT": "tcp://x"}

    assert load(written(tmp_path, ""), others) == Config()


def test_a_variable_cannot_say_which_of_two_zones_it_means(tmp_path):
    error = refused(tmp_path, '[[zone]]\nname = "a"\n[[zone]]\nname = "b"', NACOSDNS_ZONE_NAME="c")

    assert error.key == "NACOSDNS_ZONE_NAME"


@pytest.mark.parametrize("word", ["", "public"])
def test_the_public_namespace_has_two_spellings(tmp_path, word):
    """S09."""
    config = load(written(tmp_path, f'[[zone]]\nnamespace = "{word}"'), {})

    assert configuration.zones(config)[0].namespace == "public"


def test_a_zone_may_name_a_namespace_by_its_id(tmp_path):
    config = load(written(tmp_path, '[[zone]]\nnamespace = "33ea21bc-0000"'), {})

    assert configuration.namespaces(config) == ("33ea21bc-0000",)


def test_a_primary_answers_one_waits_little_and_never_fails_open(tmp_path):
    text = '[policy]\nanswers = "all"\nnone_healthy = "all"\n[policy.db]\nkind = "primary"\nempty_window_s = 60.0'
    policy = configuration.policies(load(written(tmp_path, text), {})).resolve("db")

    assert policy.primary
    assert policy.answers == 1
    assert policy.empty_window_s == 5.0
    assert policy.none_healthy is NoneHealthy.NODATA


@pytest.mark.parametrize(("written_as", "means"), [("all", 0), ("one", 1), (4, 4), ("4", 4)])
def test_answers_is_a_word_or_a_number(written_as, means):
    section = configuration.PolicySection(answers=written_as)

    assert configuration.policy(section).answers == means


def test_a_child_gets_the_same_configuration(tmp_path):
    config = load(
        written(tmp_path, '[policy."a*"]\nanswers = 2\n[[static]]\nname = "s"\ninstances = [{ ip = "::1" }]'), {}
    )

    assert configuration.decode(configuration.encode(config)) == config
    assert configuration.digest(config) != configuration.digest(Config())


def test_the_password_is_read_from_its_file_and_is_not_in_the_configuration(tmp_path):
    secret = tmp_path / "password"
    secret.write_text("s3cret\n", encoding="utf-8")
    config = load(written(tmp_path, f'[nacos]\nusername = "n"\npassword_file = "{secret}"'), {})

    assert read_password(config) == "s3cret"
    assert b"s3cret" not in configuration.encode(config)


@pytest.mark.parametrize("content", [None, ""])
def test_a_password_file_without_a_password_is_an_error(tmp_path, content):
    secret = tmp_path / "password"
    if content is not None:
        secret.write_text(content, encoding="utf-8")
    config = Config(nacos=configuration.Nacos(username="n", password_file=str(secret)))

    with pytest.raises(ConfigError, match=r"nacos\.password_file"):
        read_password(config)


def test_a_static_file_holds_static_tables_only(tmp_path):
    good = written(tmp_path, '[[static]]\nname = "a"\ngroup = "pay"\ninstances = [{ ip = "10.0.0.1" }]')
    sections = load_static(good)
    config = Config(groups={"pay": "com.example.PAY"})

    assert list(configuration.static_services(config, sections)) == [ServiceKey("public", "com.example.PAY", "a")]
    with pytest.raises(ConfigError, match="is not a known key"):
        load_static(written(tmp_path, "[server]\nfronts = 1"))


def test_lines_are_found_behind_quotes_comments_and_long_strings():
    text = (
        '# [server]\n[policy]\ngrpc_config = """\n{\n[server]\nttl_s = 1\n}"""\nttl_s = 2 # ttl\n'
        '[policy."a.b"] # named\n"ttl_s" = 3\n[[zone]]\nname = "x"\n[[zone]]\nname = "y"\n'
    )

    assert find_lines(text) == {
        ("policy",): 2,
        ("policy", "grpc_config"): 3,
        ("policy", "ttl_s"): 8,
        ("policy", "a.b"): 9,
        ("policy", "a.b", "ttl_s"): 10,
        ("zone", 0): 11,
        ("zone", 0, "name"): 12,
        ("zone", 1): 13,
        ("zone", 1, "name"): 14,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:53", ("127.0.0.1", 53)),
        ("[::1]:5353", ("::1", 5353)),
        ("[fe80::1%eth0]:53", ("fe80::1%eth0", 53)),
        ("docker0:53", ("docker0", 53)),
    ],
)
def test_host_and_port_are_told_apart(text, expected):
    assert host_port(text) == expected


@given(st.text(max_size=40))
def test_any_text_is_a_host_and_port_or_a_value_error(text):
    try:
        host, port = host_port(text, 53)
    except ValueError:
        return

    assert host
    assert 0 < port < 65536


@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_a_config_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "x.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        config = load(str(path), {})
    except ConfigError as error:
        config = error

    assert isinstance(config, Config) or config.file == str(path)
