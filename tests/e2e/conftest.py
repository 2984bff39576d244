"""Processes that a test starts end with it."""

import signal

import pytest

from tests.e2e.harness import MasterProcess, PeerProcess

# Whoever starts the tests in the background has Ctrl-C ignored in all that they start; some of them are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def processes():
    """Everything in this list is ended after the test."""
    started = []
    yield started
    for process in started:
        process.end()


@pytest.fixture
def start_master(processes):
    def start(*arguments, **settings):
        master = MasterProcess(*arguments, **settings)
        processes.append(master)
        return master

    return start


@pytest.fixture
def master(start_master):
    return start_master()


@pytest.fixture
def start_peers(processes):
    """Start some at once, so that their imports run side by side, and wait until they are ready."""

    def start(count, address, **arguments):
        peers = [PeerProcess(address, **arguments) for _ in range(count)]
        processes.extend(peers)
        for peer in peers:
            peer.expect("ready")
        return peers

    return start
