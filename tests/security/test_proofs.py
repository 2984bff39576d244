"""Knocks and proofs of lanes: what they are bound to."""

import itertools

import pytest
from msgspec.structs import replace

from pccl.core.messages.lanes import LaneHello
from pccl.security import proofs
from pccl.security.proofs import KNOCK_BYTES, Knock

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
HEAD = b"PCCL\2\0\4\0"
HELLO = LaneHello("run", "anna", "bert", 7, 1)


def test_a_knock_goes_over_the_wire_and_fits_its_key_alone():
    knock = proofs.knock(KEY, HEAD, 7)
    packed = knock.pack()
    assert len(packed) == KNOCK_BYTES
    assert Knock.unpack(packed) == knock
    assert knock.fits(KEY, HEAD)
    assert not knock.fits(OTHER_KEY, HEAD)
    assert not knock.fits(KEY, HEAD[:-2] + b"\5\0"), "the preamble is part of it: no other purpose"
    assert not knock._replace(link=8).fits(KEY, HEAD)


def test_every_byte_of_a_knock_counts():
    packed = proofs.knock(KEY, HEAD, 7).pack()
    for place in range(KNOCK_BYTES):
        changed = packed[:place] + bytes([packed[place] ^ 1]) + packed[place + 1 :]
        assert not Knock.unpack(changed).fits(KEY, HEAD), place


def test_no_two_knocks_are_equal():
    assert len({proofs.knock(KEY, HEAD, 7) for _ in range(100)}) == 100


@pytest.mark.parametrize("proof", [proofs.proof_of_dialler, proofs.proof_of_listener])
def test_a_proof_is_bound_to_everything_that_both_ends_know(proof):
    changes = {"run": "other", "sender": "carl", "receiver": "dora", "link": 8, "lane": 2}
    other = [proof(KEY, replace(HELLO, **{name: value}), b"pin") for name, value in changes.items()]
    all_of_them = [proof(KEY, HELLO, b"pin"), proof(OTHER_KEY, HELLO, b"pin"), proof(KEY, HELLO, b"nip"), *other]
    assert len(set(all_of_them)) == len(all_of_them)


def test_the_two_ends_have_different_proofs():
    assert proofs.proof_of_dialler(KEY, HELLO, b"pin") != proofs.proof_of_listener(KEY, HELLO, b"pin")


def test_a_proof_does_not_depend_on_the_one_that_is_inside():
    again = replace(HELLO, proof=b"anything")
    assert proofs.proof_of_listener(KEY, HELLO, b"pin") == proofs.proof_of_listener(KEY, again, b"pin")


def test_where_one_part_ends_and_the_next_begins_counts():
    moved = [replace(HELLO, sender="ann", receiver="abert"), replace(HELLO, run="runa", sender="nna")]
    assert len({proofs.proof_of_dialler(KEY, hello, b"") for hello in (HELLO, *moved)}) == 3
    nonces = [(b"ab", b"c", b""), (b"a", b"bc", b""), (b"", b"ab", b"c")]
    assert len(set(itertools.starmap(proofs.bound_by_nonces, nonces))) == 3


def test_part_of_a_key_is_none():
    with pytest.raises(ValueError, match="32 bytes, got 16"):
        proofs.proof_of_dialler(b"k" * 16, HELLO, b"")
