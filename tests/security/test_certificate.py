"""Certificates made of a seed: what OpenSSL thinks of them, and the vectors of RFC 8032."""

import ssl

import pytest

from pccl.security import authority, certificate, ed25519

VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
]


@pytest.mark.parametrize(("seed", "public", "message", "signature"), VECTORS)
def test_keys_and_signatures_are_those_of_the_rfc(seed, public, message, signature):
    assert ed25519.public_key(bytes.fromhex(seed)).hex() == public
    assert ed25519.sign(bytes.fromhex(seed), bytes.fromhex(message)).hex() == signature


def test_a_certificate_is_the_same_at_every_start_and_its_own_issuer():
    made = certificate.make(bytes(range(32)))
    assert made == certificate.make(bytes(range(32)))
    assert made.pin != certificate.make(bytes(32)).pin
    pem = ssl.DER_cert_to_PEM_cert(made.der)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pem)  # OpenSSL reads it
    assert context.get_ca_certs(binary_form=True) in ([made.der], [])  # it is no CA by its extensions


def test_a_private_key_shows_in_no_repr():
    made = certificate.make(bytes(range(32)))
    assert made.key_der.hex() not in repr(made)
    assert "key_der" not in repr(made)


def test_a_seed_of_another_length_is_refused():
    with pytest.raises(ValueError, match="must have 32 bytes, got 3"):
        certificate.make(b"abc")


@pytest.mark.parametrize("uri", [" pccl:master", "pccl:master\n", "pccl:\x00master", "pccl:peer\x7f", "PCCL:peer"])
def test_what_looks_like_a_role_only_when_it_is_cleaned_is_none(uri):
    """A CA that signs any name under a prefix of its own may be asked for such a one."""
    names = der(0x30, der(0x86, uri.encode()))
    extensions = der(0x30, der(0x30, bytes.fromhex("0603551d11") + der(0x04, names)))
    certified = authority.read(der(0x30, der(0x30, der(0xA3, extensions))))
    assert certified.uris == (uri,)
    assert certified.roles == ()
    assert not certified.rights
    assert authority.MASTER not in certified.uris


def der(tag, content):
    assert len(content) < 128
    return bytes((tag, len(content))) + content
