"""Where requests of the server's own may go when somebody else says where: public addresses, and what the
configuration allows beside them.

A name is looked up once, and the request goes to the addresses that were checked: whoever owns the name
cannot point it elsewhere in between. What may be reached is listed, not what may not: an address of a kind
that nobody thought of is refused.
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
"""The addresses of a host's name, in the order in which to try them; ``OSError`` when it has none."""

_URL_MAX = 2048
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_PUBLIC_6 = ip_network("2000::/3")
_NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # protocols' own, and the metadata of one cloud
            "192.88.99.0/24",  # a relay to IPv6 that is no more
            "168.63.129.16/32",  # what another cloud tells its machines, at a public address
            "2001::/23",  # protocols' own, tunnels that lead to any IPv4 address among them
            "2001:db8::/32",
            "2002::/16",  # another such tunnel
            "3fff::/20",
        ),
    )
)
_TRANSLATED = ip_network("64:ff9b::/96")


class Unreachable(Exception):
    """A URL, or what its host turned out to be, is not for this server to call. The sentence does not repeat
    the URL, which may hold a secret."""


async def resolved(host: str, port: int) -> list[str]:
    """What the system's resolver says, asked off the event loop."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True)
class OutboundPolicy:
    """What may be called: everything public, and the hosts of these ``names``, wherever they are, and these
    ``networks``."""

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    resolve: Resolve = resolved

    @classmethod
    def of(cls, allowed: Iterable[str], *, loopback: bool = False) -> OutboundPolicy:
        """With what ``hosts`` takes, and this machine itself if it is wanted."""
        checked = hosts(allowed)
        networks = tuple(found for word in checked if (found := network(word)))
        names = frozenset(word for word in checked if not network(word))
        return cls(names, (*networks, *_LOOPBACK) if loopback else networks)

    def url(self, text: str) -> httpx.URL:
        """A URL that may be called, as far as it can be told without looking up its host; else
        ``Unreachable``."""
        if len(text) > _URL_MAX:
            raise Unreachable(f"it has {len(text)} characters, at most {_URL_MAX} are taken")
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, ValueError):
            raise Unreachable("it is no URL; write e.g. https://example.com/hook") from None
        if url.scheme not in ("http", "https") or not url.raw_host:
            raise Unreachable("it has to begin with https://, or http://, and a host")
        if url.userinfo:
            raise Unreachable("it has a user or a password in front of the host; put the secret elsewhere")
        if not 0 < _port(url) < 65536:
            raise Unreachable("its port is none; ports are from 1 to 65535")
        host = _host(url)
        literal = _literal(host)
        if literal is None and not HOST.fullmatch(host):
            raise Unreachable("its host is neither a name nor an address")
        if literal is None and (host == "localhost" or host.endswith(".localhost")):
            literal = IPv4Address("127.0.0.1")
        if literal is not None and not self._allows(host, literal):
            raise Unreachable("its host is not a public address")
        return url

    async def addresses(self, url: httpx.URL) -> list[str]:
        """The addresses of a URL's host that may be called now; ``Unreachable`` when there are none, and
        ``OSError`` when the host is not known."""
        host = _host(url)
        literal = _literal(host)
        found = [str(literal)] if literal is not None else await self.resolve(host, _port(url))
        # An address with a zone (fe80::1%eth0) is one of this link.
        allowed = [each for each in found if "%" not in each and self._allows(host, ip_address(each))]
        if not allowed:
            raise Unreachable("its host has no public address")
        return allowed

    def _allows(self, host: str, address: Address) -> bool:
        plain = _plain(address)
        return host in self.names or any(plain in each for each in self.networks) or _is_public(plain)


def _port(url: httpx.URL) -> int:
    return url.port if url.port is not None else {"http": 80}.get(url.scheme, 443)


def _host(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").lower().removesuffix(".")


def _literal(host: str) -> Address | None:
    """The address that a host is, in any form that a resolver takes for one: ``127.1``, ``0x7f000001``."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _plain(address: Address) -> Address:
    """The address that a packet would reach: one of IPv6 may stand for one of IPv4."""
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
