"""Where webhooks may go, by address."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.brokers.http.addresses import describe_if_forbidden

PUBLIC = ["1.1.1.1", "93.184.215.14", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1",
          "223.255.255.255", "2606:4700::1111", "2a00:1450:4001::200e", "2001:200::1", "2003::1",
          "::ffff:1.1.1.1"]  # fmt: skip

PRIVATE = ["127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
           "100.127.255.255", "::1", "fc00::1", "fd12:3456::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
           "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b::101:101"]  # fmt: skip

UNSPECIFIED = str(IPv4Address(0))
NEVER = [
    UNSPECIFIED, "0.1.2.3", "169.254.0.1", "169.254.169.254", "100.100.100.200", "192.0.0.1", "192.0.2.1",
    "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255",
    "240.0.0.1", "255.255.255.255", "::", "::7f00:1", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "::ffff:224.0.0.1",
    "64:ff9b::a9fe:a9fe", "64:ff9b::", "64:ff9b:1::1", "64:ff9b:1:ffff::7f00:1", "2002:7f00:1::", "2002:101:101::1",
    "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "2001:2::1", "2001:10::1", "3fff::1", "fe80::1",
    "fe80::1%eth0", "febf::1", "fec0::1", "ff02::1", "fd00:ec2::254", "fd20:ce::254", "100::1", "::ffff:0:7f00:1",
    "5f00::1", "4000::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert describe_if_forbidden(address) is None
    assert describe_if_forbidden(address, allow_private=True) is None


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_allowed_only_when_asked_for(address: str) -> None:
    assert describe_if_forbidden(address) is not None
    assert describe_if_forbidden(address, allow_private=True) is None


@pytest.mark.parametrize("address", NEVER)
def test_other_addresses_are_never_allowed(address: str) -> None:
    assert describe_if_forbidden(address) is not None
    assert describe_if_forbidden(address, allow_private=True) is not None


@pytest.mark.parametrize(
    ("address", "what"),
    [("127.0.0.1", "a loopback address"), ("169.254.169.254", "a link-local address"), ("2002::1", "a 6to4 tunnel")],
)
def test_a_refusal_says_what_the_address_is(address: str, what: str) -> None:
    assert describe_if_forbidden(address) == what


@given(st.ip_addresses(v=4))
def test_what_the_standard_library_calls_not_global_is_never_allowed(address: IPv4Address) -> None:
    if not address.is_global:
        assert describe_if_forbidden(address) is not None


@given(st.ip_addresses(v=6))
def test_what_the_standard_library_calls_not_global_is_never_allowed_in_ipv6(address: IPv6Address) -> None:
    if not address.is_global:
        assert describe_if_forbidden(address) is not None


@given(st.ip_addresses(v=4), st.booleans())
def test_an_address_in_disguise_is_not_more_welcome(address: IPv4Address, allow_private: bool) -> None:
    mapped = IPv6Address(f"::ffff:{address}")
    translated = IPv6Address(f"64:ff9b::{address}")
    plain = describe_if_forbidden(address, allow_private=allow_private)
    assert describe_if_forbidden(mapped, allow_private=allow_private) == plain
    assert describe_if_forbidden(translated) is not None
    assert (describe_if_forbidden(translated, allow_private=True) is None) == (
        describe_if_forbidden(address, allow_private=True) is None
    )
    for tunnel in (0x2002 << 112 | int(address) << 80, 0x20010000 << 96 | int(address), int(address)):
        assert describe_if_forbidden(IPv6Address(tunnel)) is not None
        if tunnel != 1:  # ::1, which is loopback and no disguise
            assert describe_if_forbidden(IPv6Address(tunnel), allow_private=True) is not None
