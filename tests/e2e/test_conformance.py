"""Both forms of the API with two to six real processes: every type and operation, in and out of place, sync and async,
64 tags in flight in different orders, several threads. The peers do and check it: see `conformance.py`."""

from tests.e2e.harness import join

SIZES = (2, 3, 4, 5, 6)
"""From the smallest ring, in which both neighbours are the same."""


def test_all_forms_agree_on_every_peer(master, start_peers):
    peers = start_peers(max(SIZES), master.address, token=False)
    inside = []
    for size in SIZES:
        inside = join(inside, peers[len(inside) : size])
        for number, peer in enumerate(inside):
            peer.order("conform", me=number, peers=size)
        said = [peer.expect("conform") for peer in inside]
        assert len({each["digest"] for each in said}) == 1
        assert {each["reduced"] for each in said} == {said[0]["reduced"]}
        print(f"{size} peers: {said[0]['reduced']} results, {max(each['seconds'] for each in said):.1f} s")


def test_the_reference_conforms_too(master, start_peers):
    """And mixes with the native one."""
    native = start_peers(1, master.address, token=False)
    reference = start_peers(1, master.address, token=False, data_plane="reference")
    inside = join([], native + reference)
    for number, peer in enumerate(inside):
        peer.order("conform", me=number, peers=2)
    said = [peer.expect("conform") for peer in inside]
    assert said[0]["digest"] == said[1]["digest"]
