from __future__ import annotations

import pytest

from nacosdns.config import Host
from nacosdns.config_load import load
from nacosdns.errors import ConfigError


def read(tmp_path, text):
    file = tmp_path / "nacosdns.toml"
    file.write_text(text, encoding="utf-8")
    return load(str(file), {})


def test_the_guard_is_off_until_it_is_wanted(tmp_path):
    assert read(tmp_path, "").host == Host()
    assert not Host().guard


def test_the_section_is_read_from_file_and_environment(tmp_path):
    text = '[host]\nguard = true\nnodes = ["10.0.0.5", "2001:db8::5"]\nrestore_on_stop = true\n'
    section = read(tmp_path, text).host

    assert section == Host(guard=True, nodes=("10.0.0.5", "2001:db8::5"), restore_on_stop=True)
    assert load(None, {"NACOSDNS_HOST_NODES": "10.0.0.5,10.0.0.6"}).host.nodes == ("10.0.0.5", "10.0.0.6")


@pytest.mark.parametrize(
    ("line", "key", "what"),
    [
        ('nodes = ["10.0.0.5:53"]', "host.nodes", "not an IP address"),
        ('nodes = ["node1"]', "host.nodes", "not an IP address"),
        ('nodes = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]', "host.nodes", "more than two"),
        ('resolv_conf = "etc/resolv.conf"', "host.resolv_conf", "not absolute"),
        ('guard = true\n[forward]\nresolv_conf = "/etc/resolv.conf"', "forward.resolv_conf", "names only us"),
        ("gaurd = true", "host.gaurd", "not a known key"),
    ],
)
def test_what_cannot_be_is_refused_with_key_and_remedy(tmp_path, line, key, what):
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, f"[host]\n{line}\n")

    assert raised.value.key == key
    assert what in raised.value.what
    assert raised.value.remedy
    assert raised.value.line
