"""Policy for requests that the server sends to URLs of its clients: public addresses, and the exceptions
in the configuration.

A name is resolved once, and the request goes to the addresses that were checked: the owner of the name
cannot change them in between. The policy lists what is permitted, not what is forbidden: an unforeseen
kind of address is refused.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import httpx

from perdure.config.hosts import HOST, Network, hosts, network

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Function that returns the addresses of a host name, in the order in which to try them; ``OSError`` if it
has none."""

_URL_MAX = 2048
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_PUBLIC_6 = ip_network("2000::/3")
_NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # protocol assignments, and a metadata service of one cloud
            "192.88.99.0/24",  # deprecated relay to IPv6
            "168.63.129.16/32",  # metadata service of another cloud, at a public address
            "2001::/23",  # protocol assignments, with tunnels to any IPv4 address
            "2001:db8::/32",
            "2002::/16",  # another such tunnel
            "3fff::/20",
        ),
    )
)
_TRANSLATED = ip_network("64:ff9b::/96")


class Unreachable(Exception):
    """The server may not call a URL, or the address of its host. The message does not repeat the URL,
    which may contain a secret."""


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses from the system's resolver, called off the event loop."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True)
class OutboundPolicy:
    """Permitted destinations: everything public, the hosts of these ``names`` at any address, and these
    ``networks``."""

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    resolve: Resolve = resolve_host

    @classmethod
    def of(cls, allowed: Iterable[str], *, loopback: bool = False) -> OutboundPolicy:
        """Return a policy that also permits the ``allowed`` names, addresses and networks, and this host
        itself if ``loopback``."""
        checked = hosts(allowed)
        networks = tuple(parsed for word in checked if (parsed := network(word)))
        names = frozenset(word for word in checked if not network(word))
        if loopback:
            networks = (*networks, *_LOOPBACK)
        return cls(names, networks)

    def check_url(self, text: str) -> httpx.URL:
        """Return the URL. ``Unreachable`` if it may not be called; the addresses of a host name are not known
        here, and are checked by ``addresses``."""
        if len(text) > _URL_MAX:
            raise Unreachable(f"it has {len(text)} characters, at most {_URL_MAX} are taken")
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, ValueError):
            raise Unreachable("it is not a URL; write e.g. https://example.com/hook") from None
        if url.scheme not in ("http", "https") or not url.raw_host:
            raise Unreachable("it has to begin with https://, or http://, and a host")
        if url.userinfo:
            raise Unreachable("it has a user or a password in front of the host; put the secret elsewhere")
        if not 0 < _port(url) < 65536:
            raise Unreachable("its port is none; ports are from 1 to 65535")
        host = _host(url)
        literal = _parse_literal(host)
        if literal is None and not HOST.fullmatch(host):
            raise Unreachable("its host is neither a name nor an address")
        if literal is None and (host == "localhost" or host.endswith(".localhost")):
            literal = IPv4Address("127.0.0.1")
        if literal is not None and not self._allows(host, literal):
            raise Unreachable("its host is not a public address")
        return url

    async def resolve_addresses(self, url: httpx.URL) -> list[str]:
        """Return the addresses of a URL's host that may be called now. ``Unreachable`` if there are none,
        and ``OSError`` if the host is not known."""
        host = _host(url)
        if (literal := _parse_literal(host)) is not None:
            found = [str(literal)]
        else:
            found = await self.resolve(host, _port(url))
        # An address with a zone (fe80::1%eth0) is link-local.
        allowed = [each for each in found if "%" not in each and self._allows(host, ip_address(each))]
        if not allowed:
            raise Unreachable("its host has no public address")
        return allowed

    def _allows(self, host: str, address: Address) -> bool:
        reached = _resolve_ipv4(address)
        return host in self.names or any(reached in each for each in self.networks) or _is_public(reached)


def _port(url: httpx.URL) -> int:
    if url.port is not None:
        return url.port
    return {"http": 80}.get(url.scheme, 443)


def _host(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").lower().removesuffix(".")


def _parse_literal(host: str) -> Address | None:
    """Return the address that a host is written as, in any form that a resolver accepts: ``127.1``,
    ``0x7f000001``; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _resolve_ipv4(address: Address) -> Address:
    """Return the address that a packet would reach: an IPv6 address may stand for an IPv4 one."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _TRANSLATED:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_public(address: Address) -> bool:
    if any(address in each for each in _NOT_PUBLIC):
        return False
    if isinstance(address, IPv6Address):
        return address in _PUBLIC_6
    return address.is_global and not address.is_multicast and not address.is_reserved
