"""What may be called when somebody else names it: every form of an address that is nobody's public host."""

from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_address

import pytest

from perdure.config.hosts import hosts
from perdure.server.runs.outbound_policy import OutboundPolicy, Unreachable, resolve_host

PUBLIC = ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:8.8.8.8", "64:ff9b::808:808"]
NOT_PUBLIC = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",  # noqa: S104 - it is refused
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.0.1",
    "203.0.113.7",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "2002:7f00:1::",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]


def named(*addresses: str, allowed: tuple[str, ...] = (), loopback: bool = False) -> OutboundPolicy:
    """A reach for which every name has these addresses."""

    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    reach = OutboundPolicy.of(allowed, loopback=loopback)
    return OutboundPolicy(reach.names, reach.networks, resolve)


def url_of(address: str) -> str:
    return f"https://[{address}]/hook" if ":" in address else f"https://{address}/hook"


def called(reach: OutboundPolicy, url: str = "https://hooks.example/") -> list[str]:
    return asyncio.run(reach.resolve_addresses(reach.check_url(url)))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_called(address: str) -> None:
    assert called(named(address)) == [address]
    assert called(named(), url_of(address)) == [str(ip_address(address))]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_any_other_address_is_refused_as_it_stands_and_behind_a_name(address: str) -> None:
    with pytest.raises(Unreachable, match="not a public address"):
        OutboundPolicy().check_url(url_of(address))
    with pytest.raises(Unreachable, match="no public address"):
        called(named(address))


@pytest.mark.parametrize(
    "host",
    ["127.1", "2130706433", "0x7f000001", "0x7f.1", "localhost", "LOCALHOST.", "a.localhost"],
)
def test_another_way_to_write_an_address_is_the_same_address(host: str) -> None:
    with pytest.raises(Unreachable, match="not a public address"):
        OutboundPolicy().check_url(f"http://{host}/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/hook",
        "//hooks.example/",
        "ftp://hooks.example/",
        "file:///etc/passwd",
        "https://",
        "https:///hook",
        "https://ada@hooks.example/",
        "https://ada:s3cret@hooks.example/",
        "https://hooks.example\\@127.0.0.1/",
        "https://hooks.example:0/",
        "https://hooks.example:65536/",
        "https://hooks.example:port/",
        "https://hooks%2eexample/",
        "https://hooks .example/",
        "https://[fe80::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://hooks.example/\r\nX: y",
        "https://0177.0.0.1/",
        "https://hooks.example/" + "a" * 2048,
    ],
)
def test_what_is_no_url_of_a_host_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(Unreachable) as refused:
        OutboundPolicy().check_url(url)
    assert len(str(refused.value)) < 100
    assert "s3cret" not in str(refused.value)


def test_of_several_addresses_only_the_public_ones_are_called() -> None:
    mixed = named("10.0.0.1", "93.184.215.14", "fe80::1%eth0", "::1")
    assert called(mixed) == ["93.184.215.14"]
    with pytest.raises(Unreachable):
        called(named())


def test_what_the_configuration_names_may_be_called() -> None:
    near = named("10.1.2.3", allowed=("hooks.internal",))
    assert called(near, "http://Hooks.Internal./") == ["10.1.2.3"]
    with pytest.raises(Unreachable):
        called(near, "http://not-hooks.internal/")
    with pytest.raises(Unreachable):
        called(near, "http://hooks.internal.example/")

    net = named("10.1.2.3", allowed=("10.1.0.0/16", "fd00::/8"))
    assert called(net) == ["10.1.2.3"]
    assert called(net, "http://10.1.9.9/") == ["10.1.9.9"]
    assert called(net, "http://[::ffff:10.1.9.9]/") == ["::ffff:a01:909"]
    assert called(net, "http://[fd00::7]/") == ["fd00::7"]
    for other in ("http://10.2.0.1/", "http://127.0.0.1/"):
        with pytest.raises(Unreachable):
            net.check_url(other)


def test_this_machine_is_within_reach_where_it_is_wanted() -> None:
    near = named("::1", "127.0.0.1", loopback=True)
    assert called(near, "http://localhost:8000/") == ["::1", "127.0.0.1"]
    assert called(near, "http://127.1/") == ["127.0.0.1"]
    with pytest.raises(Unreachable):
        near.check_url("http://10.0.0.1/")


def test_hosts_are_names_addresses_and_networks() -> None:
    assert hosts(["Hooks.Internal", "10.0.0.7", "10.1.0.0/16", "fd00::/8"]) == (
        "hooks.internal",
        "10.0.0.7",
        "10.1.0.0/16",
        "fd00::/8",
    )
    for wrong in ("10.1.2.3/16", "hooks.internal:8000", "http://hooks.internal", "*.internal", "10.1", ""):
        with pytest.raises(ValueError, match="a list of hosts"):
            hosts([wrong])


def test_a_name_is_looked_up_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))] * 2

    def lookup(*args: object, **more: object) -> list[object]:
        asked.append(threading.current_thread() is threading.main_thread())
        return list(found)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert asyncio.run(resolve_host("hooks.example", 80)) == ["127.0.0.1"]
    assert asked == [False]
