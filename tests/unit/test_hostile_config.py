"""Configurations that nobody would write on purpose: each can be used or is one clear error, never a traceback."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nacosdns import config as configuration
from nacosdns.config_load import load, load_static, read_password
from nacosdns.errors import ConfigError

DIGITS = "9" * 5000
SECTIONS = ("server", "nacos", "policy", "cache", "forward", "web", "log", "zone", "static", "namespaces", "groups")


def keys_of(section: str) -> tuple[str, ...]:
    kinds = {"policy": configuration.PolicySection, "zone": configuration.ZoneSection}
    kind = kinds.get(section) or getattr(configuration, section.capitalize(), None)
    return tuple(field.name for field in msgspec.structs.fields(kind)) if kind else ("a", "A", "public", "b")


def used(path, environ=None) -> None:
    """What a start does with a configuration before any process of its own runs."""
    config = load(str(path), environ or {})
    assert configuration.decode(configuration.encode(config)) == config
    configuration.names(config)
    configuration.policies(config)
    configuration.static_services(config)
    configuration.digest(config)
    read_password(config)


def refusal(tmp_path, text, environ=None) -> str:
    file = tmp_path / "nacosdns.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        used(file, environ)
    return str(caught.value).replace(str(tmp_path), "")


def fault_of(read, *arguments) -> ConfigError | None:
    """What is wrong, if anything is; any other exception is a traceback for whoever wrote the file."""
    try:
        read(*arguments)
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(f"a = {DIGITS}", "too many digits", id="a-number-that-python-does-not-read"),
        pytest.param("a = " + "[" * 100_000, "nested too deeply", id="lists-in-lists"),
        pytest.param("a = " + "{a=" * 3_000, "nested too deeply", id="tables-in-tables"),
        pytest.param(f'[policy]\nanswers = "{DIGITS}"', "policy.answers", id="answers"),
        pytest.param(f"[log]\nqueries = '1/{DIGITS}'", "log.queries", id="sample"),
        pytest.param("[policy]\ngrpc_config = '" + "[" * 9_000 + "'", "nested too deeply", id="json-in-json"),
        pytest.param(f"[policy]\ngrpc_config = '{DIGITS}'", "policy.grpc_config", id="json-number"),
        pytest.param("[server]\ntcp_connections = 1" + "0" * 30, "too large a number", id="number-of-100-bits"),
        pytest.param('[cache]\ndir = "/a\\u0000"', "cache.dir: holds a zero byte", id="directory"),
        pytest.param('static_file = "a\\u0000"', "static_file: holds a zero byte", id="static-file"),
        pytest.param('[forward]\nresolv_conf = "a\\u0000"', "forward.resolv_conf: holds a zero byte", id="resolv-conf"),
        pytest.param(
            '[nacos]\nusername = "x"\npassword_file = "a\\u0000"',
            "nacos.password_file: holds a zero byte",
            id="password",
        ),
        pytest.param('[nacos]\nservers = ["a\\u0000:80"]', "no host has such a name", id="server-with-a-zero-byte"),
        pytest.param('[nacos]\nservers = ["a b:80"]', "no host has such a name", id="server-with-a-blank"),
        pytest.param('[forward]\nupstreams = ["fe80::1%\\u0000"]', "forward.upstreams", id="interface-of-an-upstream"),
        pytest.param('[server]\nlisten = ["[fe80::1%a b]:53"]', "server.listen", id="interface-to-listen-on"),
        pytest.param("[[static]]\nname = 'x'\ninstances = [{ip = '10.0.0.1', weight = inf}]", "weight", id="weight"),
    ],
)
def test_what_no_reader_of_values_can_take_is_said_in_words(tmp_path, text, says):
    assert says in refusal(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        '[namespaces]\nA = "x"\na = "y"',
        '[groups]\nA = "x"\na = "y"',
        '[[zone]]\nname = "é"\n[[zone]]\nname = "xn--9ca"',
        '[[zone]]\nname = "a"\nnamespace = "x"\n[[zone]]\nname = "b"\nnamespace = "X"',
        '[[zone]]\nname = "' + "x." * 127 + '"',
    ],
)
def test_names_that_clash_are_refused_before_any_process_starts(tmp_path, text):
    """Each is right by itself; the naming rules cannot be made of them, which every child would find out, again and again."""
    assert refusal(tmp_path, text)


def test_a_variable_that_is_not_utf_8_is_refused_by_its_name(tmp_path):
    assert "NACOSDNS_CACHE_DIR: is not UTF-8" in refusal(tmp_path, "", {"NACOSDNS_CACHE_DIR": "/\udc80"})


def test_a_variable_of_another_program_may_hold_any_bytes(tmp_path):
    file = tmp_path / "nacosdns.toml"
    file.write_text("")
    used(file, {"LS_COLORS": "\udc80", "NACOSDNS_SERVICE_HOST": "\udc80"})


def test_line_numbers_count_the_lines_of_toml_alone(tmp_path):
    """A form feed or a paragraph separator inside a value ends no line."""
    assert refusal(tmp_path, "# \u2028\n[policy]\nttl_s = -1\n").startswith("/nacosdns.toml:3: policy.ttl_s")


def test_what_looks_like_a_table_inside_a_long_string_harms_nothing(tmp_path):
    file = tmp_path / "nacosdns.toml"
    file.write_text('[policy]\ngrpc_config = """{ "a": "\\"""b",\n"c":\n[a = {} #]\n0}"""\n')
    with pytest.raises(ConfigError, match="not JSON"):
        used(file)


def test_a_static_file_is_read_with_the_same_care(tmp_path):
    file = tmp_path / "static.toml"
    file.write_text(f"a = {DIGITS}")
    for path in (str(file), "a\0b"):
        with pytest.raises(ConfigError):
            load_static(path)


# Whatever is written

WORDS = st.sampled_from(
    [
        *("", "all", "one", "0", "1", "nacos.", "a.b", "*.a", "single-label", "127.0.0.1:53", "[::1]:53", "10.0.0.0/8"),
        *(
            "fe80::1%lo",
            "xn--a",
            "é",
            "A",
            "a",
            "tls://1.1.1.1",
            "resolv.conf",
            "/var/x",
            "a\\u0000b",
            "1/10",
            "\\U0001F600",
        ),
    ]
)
TEXTS = st.one_of(
    WORDS, st.text(st.characters(exclude_characters='"\\\r\n', exclude_categories=["Cs", "Cc"]), max_size=80)
)
SCALARS = st.one_of(
    TEXTS.map(lambda text: f'"{text}"'),
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(["true", "false", "nan", "inf", "-inf", "1e308", "-0.0", "2020-01-01", "07:00:00", "0x10", "{}"]),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: f"{value:.17e}"),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
    st.lists(st.tuples(st.sampled_from(["ip", "port", "weight", "metadata", "x"]), SCALARS), max_size=3).map(
        lambda pairs: "[{" + ", ".join(f"{key} = {value}" for key, value in dict(pairs).items()) + "}]"
    ),
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(0, 4))):
        section = draw(st.sampled_from(SECTIONS))
        array = section in {"zone", "static"} and draw(st.booleans())
        tail = f'."{draw(TEXTS)}"' if draw(st.integers(0, 5)) == 0 else ""
        lines.append(f"[[{section}{tail}]]" if array else f"[{section}{tail}]")
        for key in draw(st.lists(st.sampled_from(keys_of(section)), max_size=3, unique=True)):
            lines.append(f"{key} = {draw(VALUES)}")  # noqa: PERF401  # drawing in a comprehension reads worse
    return "\n".join(lines)


@given(documents())
@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
def test_any_keys_with_any_values_are_a_configuration_or_a_config_error(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text(text, encoding="utf-8")
    fault = fault_of(used, file)

    assert fault is None or (fault.what and fault.file)


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes_are_a_configuration_or_a_config_error(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "bytes.toml"
    file.write_bytes(content)
    faults = [fault_of(used, file), fault_of(load_static, str(file))]

    assert all(fault is None or fault.what for fault in faults)


@given(
    st.lists(st.sampled_from(["[a", "]", "]]", '"""', "'''", '"', "\\", "\n", " = ", "a", ".", "#", "{}", "[[", ","]))
)
@settings(max_examples=300)
def test_the_marks_of_toml_in_any_order_are_a_configuration_or_a_config_error(tmp_path_factory, marks):
    file = tmp_path_factory.getbasetemp() / "marks.toml"
    file.write_text("".join(marks))
    fault = fault_of(used, file)

    assert fault is None or (fault.what and fault.file)


@given(st.dictionaries(st.sampled_from(["ZONE_NAME", "SERVER_LISTEN", "POLICY_ANSWERS", "NACOS_SERVERS"]), st.text()))
@settings(max_examples=100)
def test_any_environment_is_a_configuration_or_a_config_error(tmp_path_factory, values):
    file = tmp_path_factory.getbasetemp() / "empty.toml"
    file.write_text("")
    fault = fault_of(used, file, {f"NACOSDNS_{key}": value for key, value in values.items()})

    assert fault is None or fault.file in {"environment", str(file)}
