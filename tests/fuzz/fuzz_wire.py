"""Coverage-guided fuzzing of everything in Python that reads bytes from a socket. Run by hand, not by pytest.

    pip install atheris
    PYTHONPATH=src python tests/fuzz/fuzz_wire.py -max_total_time=60

Ends with exit code 0 when the time is over, and with the input that did it in a file `crash-...` when something but
`WireError` was raised or a promise was broken.
"""

import sys

import atheris

with atheris.instrument_imports(include=["pccl.wire"]):
    from pccl.wire.codec import decode_between, decode_to_master, decode_to_peer, encode
    from pccl.wire.framing import PREAMBLE_BYTES, FrameReader, WireError, parse_preamble, parse_refusal

LIMIT = 300
"""Small, so that the fuzzer meets both sides of it with short inputs."""


def check_words(error: WireError) -> None:
    assert str(error).isprintable()
    assert len(str(error)) <= 200


def fuzz_message(body: bytes) -> None:
    for decode in (decode_to_master, decode_to_peer, decode_between):
        try:
            message = decode(body)
        except WireError as error:
            check_words(error)
        else:
            assert decode(encode(message)) == message


def fuzz_connection(portion_bytes: int, data: bytes) -> None:
    """The first bytes, then frames in portions of one size, each body taken for a message."""
    try:
        parse_preamble(data[:PREAMBLE_BYTES])
    except WireError as error:
        check_words(error)
    assert all(character.isprintable() for character in parse_refusal(data))
    reader = FrameReader(LIMIT)
    for start in range(PREAMBLE_BYTES, len(data), portion_bytes):
        try:
            bodies = reader.feed(data[start : start + portion_bytes])
        except WireError as error:
            check_words(error)
            return
        assert reader.buffered < LIMIT + 4
        for body in bodies:
            assert len(body) <= LIMIT
            fuzz_message(body)


def fuzz_one(data: bytes) -> None:
    fuzz_message(data)
    if data:
        fuzz_connection(data[0] + 1, data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, fuzz_one)
    atheris.Fuzz()
