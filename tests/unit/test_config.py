"""Settings: argument, then environment, then default; what is wrong is named."""

import os

import pytest

from pccl.called import find_name
from pccl.cli import machine_checks
from pccl.cli.master import host_of
from pccl.config import (
    ANNOUNCED_HOST,
    CONNECTION_DEAD_S,
    HOST_MAX,
    SERVE_BYTES_S,
    Address,
    MasterConfig,
    MasterLimitSettings,
    PeerConfig,
    PeerLimitSettings,
    Places,
    find_master,
)
from pccl.config import parse_address as parse
from pccl.core import fields
from pccl.core.limits import MasterLimits, PeerLimits
from pccl.errors import UsageError


def peer_config(address="127.0.0.1:48148", group=0, lanes=0, listen="", announce="", **limits):
    return PeerConfig.resolve(address, group, lanes, Places(listen, announce), limits)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:48148", "127.0.0.1", 48148),
        ("master.example.org:1", "master.example.org", 1),
        ("[::1]:48148", "::1", 48148),
        ("[::]:0", "::", 0),
        (":48148", "", 48148),
    ],
)
def test_addresses(text, host, port):
    assert parse("address", text) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "host",
        "[::1]",
        "::1",
        "::1:48148",
        "host:",
        "host:x",
        "host:-1",
        "host:65536",
        "a b:1",
        "foo..bar:1",
        ".:1",
        ".foo:1",
        "x\0y:1",
        "x\ny:1",
        f"{'a' * 64}.example:1",
        f"{'a.' * 128}example:1",
    ],
)
def test_bad_addresses_are_named(text):
    with pytest.raises(UsageError, match=r"^address\b.* must .*, got "):
        parse("address", text)


def test_names_are_kept_as_they_are_asked_for():
    assert parse("address", "bücher.example:1").host == "xn--bcher-kva.example"
    assert parse("address", "my_host.local.:1").host == "my_host.local."
    assert parse("address", "[fe80::1%eth0]:1").host == "fe80::1%eth0"


def test_an_announced_name_must_fit_the_message():
    """Else the master would take the greeting for garbage and say nothing."""
    assert peer_config(announce="bücher.example").announce.host == "xn--bcher-kva.example"
    for host in ("a/b", "a+b", "'"):
        with pytest.raises(UsageError, match="PCCL_ANNOUNCE"):
            peer_config(announce=host)
    (bounds,) = [each for each in fields.Host.__metadata__ if each.pattern]
    assert bounds.pattern == rf"\A{ANNOUNCED_HOST.pattern}\Z"
    assert bounds.max_length == HOST_MAX


@pytest.mark.parametrize(
    ("text", "host", "port"), [("", "", 0), ("host", "host", 0), ("[::1]", "::1", 0), (":7", "", 7)]
)
def test_places_need_no_port(text, host, port):
    assert parse("listen", text, port_required=False) == Address(host, port)


def test_an_address_is_written_as_it_is_read():
    for text in ("127.0.0.1:48148", "[::1]:48148", "localhost:1"):
        assert str(parse("address", text)) == text


def test_a_peer_must_know_where_its_master_is():
    for address in (":48148", "127.0.0.1:0"):
        with pytest.raises(UsageError, match="host and port"):
            peer_config(address)


def test_defaults():
    config = peer_config()
    assert config.limits == PeerLimits()
    assert (config.group, config.lanes, config.listen, config.announce) == (0, 0, Address("", 0), Address("", 0))
    assert MasterConfig.resolve("0.0.0.0:48148", {}).limits == MasterLimits()


def test_the_environment_fills_what_was_not_passed(monkeypatch):
    monkeypatch.setenv("PCCL_LANES", "16")
    monkeypatch.setenv("PCCL_LISTEN", "0.0.0.0:7000")
    monkeypatch.setenv("PCCL_ANNOUNCE", "peer.example.org:7001")
    monkeypatch.setenv("PCCL_DIAL_TIMEOUT_S", "2.5")
    monkeypatch.setenv("PCCL_SILENCE_S", "30")
    monkeypatch.setenv("PCCL_DEFAULT_LANES", "8")
    config = peer_config()
    assert (config.lanes, config.listen.port, config.limits.dial_timeout_s) == (16, 7000, 2.5)
    assert config.announce == Address("peer.example.org", 7001)
    limits = MasterConfig.resolve("0.0.0.0:48148", {"silence_s": 40.0}).limits
    assert (limits.silence_s, limits.default_lanes) == (40.0, 8)
    config = peer_config(lanes=2, listen=":7002", announce="other", dial_timeout_s=3)
    assert (config.lanes, config.listen.port, config.announce.host) == (2, 7002, "other")
    assert config.limits.dial_timeout_s == 3.0


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PCCL_LANES", "many"),
        ("PCCL_LANES", "1025"),
        ("PCCL_DIAL_TIMEOUT_S", "0"),
        ("PCCL_DIAL_TIMEOUT_S", "1e-9"),
        ("PCCL_CONNECTION_DEAD_S", "1"),
        ("PCCL_DIAL_TIMEOUT_S", "nan"),
        ("PCCL_MASTER_SILENCE_S", "inf"),
        ("PCCL_EARLY_OFFERS_MAX", "0"),
        ("PCCL_LISTEN", "host:port"),
        ("PCCL_ANNOUNCE", "::1"),
    ],
)
def test_a_bad_variable_is_named(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=variable):
        peer_config()


@pytest.mark.parametrize("limits", [{"dial_timeout_s": -1}, {"master_silence_s": "soon"}, {"early_offers_max": 1.5}])
def test_a_bad_limit_is_named(limits):
    with pytest.raises(UsageError, match=next(iter(limits))):
        peer_config(**limits)


@pytest.mark.parametrize(
    ("name", "value"), [("default_lanes", 1025), ("default_lanes", 0), ("peers_max", 65537), ("connection_dead_s", 0)]
)
def test_a_bad_limit_of_the_master_is_named(name, value):
    with pytest.raises(UsageError, match=name):
        MasterConfig.resolve(":0", {name: value})


def test_when_a_connection_is_dead_can_be_set(monkeypatch):
    assert peer_config().connection_dead_s == CONNECTION_DEAD_S
    assert peer_config(connection_dead_s=90).connection_dead_s == 90.0
    monkeypatch.setenv("PCCL_CONNECTION_DEAD_S", "120")
    assert MasterConfig.resolve(":0", {}).connection_dead_s == peer_config().connection_dead_s == 120.0


def test_an_interruption_is_judged_by_one_measure():
    """The kernel's limit strikes although nobody waits, so it must not be the stricter one."""
    assert min(MasterLimits().silence_s, PeerLimits().master_silence_s, PeerLimits().stall_s) <= CONNECTION_DEAD_S


def test_what_visitors_may_have(monkeypatch):
    assert peer_config().serve_bytes_s == SERVE_BYTES_S
    assert peer_config(serve_bytes_s=0).serve_bytes_s == 0
    monkeypatch.setenv("PCCL_SERVE_BYTES_S", "1000000")
    assert peer_config().serve_bytes_s == 1_000_000
    for wrong in (-1, 1, "fast"):
        with pytest.raises(UsageError, match="PCCL_SERVE_BYTES_S"):
            peer_config(serve_bytes_s=wrong)


def test_an_unknown_limit_is_named():
    with pytest.raises(UsageError, match=r"must be one of .*, got 'dial_timeout'"):
        peer_config(dial_timeout=1)


@pytest.mark.parametrize("group", [-1, 2**32, True, "red", None])
def test_a_bad_group_is_named(group):
    with pytest.raises(UsageError, match="peer_group"):
        peer_config(group=group)


@pytest.mark.parametrize("name", ["vote_timeout_s", "undecided_s"])
def test_a_limit_that_may_be_off_is_off_at_0_and_no_other_is(name):
    assert getattr(MasterConfig.resolve("", {name: 0}).limits, name) == 0.0
    with pytest.raises(UsageError, match="silence_s"):
        MasterConfig.resolve("", {"silence_s": 0})


def test_every_limit_can_be_passed():
    assert set(MasterLimitSettings.__annotations__) == {*MasterLimits.__struct_fields__, "connection_dead_s"}
    others = {"connection_dead_s", "serve_bytes_s"}
    assert set(PeerLimitSettings.__annotations__) == {*PeerLimits.__struct_fields__, *others}


def test_the_master_has_one_address():
    with pytest.raises(UsageError, match="one name, which is looked up at every dial"):
        peer_config("a:1,b:1")


def test_the_master_may_be_named_by_the_environment_and_has_a_usual_port(monkeypatch):
    monkeypatch.delenv("PCCL_MASTER", raising=False)
    for missing in (None, "", "  "):
        with pytest.raises(UsageError, match="PCCL_MASTER"):
            find_master(missing)
    monkeypatch.setenv("PCCL_MASTER", "alpha")
    assert find_master(None) == Address("alpha", 48148)
    assert find_master("beta:1") == Address("beta", 1)
    assert find_master("[::1]") == Address("::1", 48148)
    assert find_master("pccl://beta") == Address("beta", 48148)
    with pytest.raises(UsageError, match="write beta:1"):
        find_master("tcp://beta:1")
    assert MasterConfig.resolve("127.0.0.1", {}).listen == Address("127.0.0.1", 48148)
    assert MasterConfig.resolve("127.0.0.1:0", {}).listen == Address("127.0.0.1", 0)


def test_a_name_is_passed_or_the_environment_s_or_that_of_machine_and_process(monkeypatch):
    monkeypatch.delenv("PCCL_NAME", raising=False)
    assert find_name(None).endswith(f"-{os.getpid()}")
    monkeypatch.setenv("PCCL_NAME", "tokyo-2")
    assert find_name(None) == "tokyo-2"
    assert find_name("oslo") == "oslo"
    assert find_name(" ").endswith(f"-{os.getpid()}")
    assert find_name("x" * 10_000) == "x" * 47 + "…"
    assert find_name("a\nb\x1b[31m") == "a?b?[31m"
    with pytest.raises(UsageError, match="PCCL_NAME"):
        find_name(7)


@pytest.mark.parametrize("wrong", ["{}", "127.0.0.1:{}", "{}@127.0.0.1:48148", "pccl://{}", "127.0.0.1:48148/{}"])
def test_a_token_in_the_place_of_an_address_is_in_no_error(wrong):
    """Nor in what a traceback shows of it."""
    token = "AYF-pFtBe6kAAAAAKpEEfW3_CierMzpPHJLT1ILSUu8GOvUR78aK7c0xd1ocWaDfhIqLk-RcqZq1JTnM"
    with pytest.raises(UsageError, match="pccl://host:port#token") as failed:
        find_master(wrong.format(token))
    assert token[:20] not in str(failed.value)
    assert token[:20] not in machine_checks._shown("PCCL_MASTER", wrong.format(token))


@pytest.mark.parametrize(
    ("listen", "host"),
    [
        ("localhost", "localhost"),
        ("localhost:1", "localhost"),
        ("[::1]", "[::1]"),
        (":1", ""),
        ("0.0.0.0:1", "0.0.0.0"),
    ],
)
def test_a_master_prints_the_host_that_it_listens_on_also_where_the_port_is_left_out(listen, host):
    assert host_of(listen) == host
