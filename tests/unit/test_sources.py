"""Our sources keep the rules of `source_rules.py`, and each rule has teeth: it reports a source that breaks it."""

from pathlib import Path

import pytest

from tests.unit.source_file import Source
from tests.unit.source_rules import (
    CORE_LINES_MAX,
    FILE_LINES_MAX,
    FUNCTION_LINES_MAX,
    core_size,
    violations,
)
from tests.unit.source_words import PLAIN_WORDS_LEFT, plain_words

ROOT = Path(__file__).parents[2]
SOURCES = [
    Source.parse(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    for directory in ("src", "tests", "bench", "examples")
    for path in sorted((ROOT / directory).rglob("*.py"))
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.path))
def test_source_keeps_the_rules(source):
    assert violations(source) == []


def test_core_stays_small():
    assert list(core_size(SOURCES)) == []


def test_words_that_are_not_plain_become_fewer():
    assert list(plain_words(SOURCES, PLAIN_WORDS_LEFT)) == []


def test_the_sources_were_found():
    assert {"src/pccl/types.py", "src/pccl/core/session.py", "tests/unit/test_sources.py"} <= {
        str(source.path) for source in SOURCES
    }


def report(path, code):
    """The violations of a small module that has nothing else wrong with it."""
    return violations(Source.parse(path, f'"""What it owns."""\n{code}\n'))


CORE = "src/pccl/core/master/roster.py"
NET = "src/pccl/net/driver.py"
TEST = "tests/unit/test_roster.py"

BAD = {
    # import direction
    "core imports wire": (CORE, "from pccl.wire import codec", "'core' must not import"),
    "core imports errors": (CORE, "import pccl.errors", "'core' must not import"),
    "types import core": ("src/pccl/types.py", "from pccl.core import effects", "'types' must not import"),
    "wire imports net": ("src/pccl/wire/frames.py", "from pccl import net", "'wire' must not import"),
    "wire imports dataplane": ("src/pccl/wire/frames.py", "import pccl.dataplane", "'wire' must not import"),
    "dataplane imports wire": ("src/pccl/dataplane/reference.py", "import pccl.wire", "'dataplane' must not import"),
    "net imports communicator": (NET, "from ..communicator import Communicator", "'net' must not import"),
    "net imports the public names": (NET, "from pccl import Communicator", "'net' must not import"),
    "api imports cli": ("src/pccl/api/communicator.py", "import pccl.cli", "'api' must not import"),
    "cli imports training": ("src/pccl/cli/demo/story.py", "import pccl.training", "'cli' must not import"),
    "errors import too much of core": ("src/pccl/errors.py", "from pccl.core import master", "'errors' must not"),
    "config imports too much of core": ("src/pccl/config.py", "import pccl.core.effects", "'config' must not"),
    "public names import cli": ("src/pccl/__init__.py", "from pccl.cli import main", "'pccl' must not import"),
    "import inside a function": (CORE, "def f() -> None:\n    import pccl.net", "'core' must not import"),
    "core imports security": (CORE, "from pccl.security import tokens", "'core' must not import"),
    "wire imports security": ("src/pccl/wire/frames.py", "import pccl.security", "'wire' must not import"),
    "security imports net": ("src/pccl/security/proofs.py", "import pccl.net", "'security' must not import"),
    "dataplane imports security": ("src/pccl/dataplane/plane.py", "import pccl.security", "'dataplane' must not"),
    "solver imports core": ("src/pccl/solver/routes.py", "import pccl.core.effects", "'solver' must not import"),
    "training reaches around the public API": (
        "src/pccl/training/diloco.py",
        "import pccl.core.peer.peer",
        "'training' must",
    ),
    "training imports net": ("src/pccl/training/diloco.py", "from pccl.net import thread", "'training' must not"),
    "views decide": ("src/pccl/views/page.py", "from pccl.core import master", "'views' must not import"),
    "views import net": ("src/pccl/views/doctor.py", "import pccl.net.dialling", "'views' must not import"),
    "net imports views": (NET, "from pccl.views import metrics", "'net' must not import"),
    "integrations import core": (
        "src/pccl/integrations/ray.py",
        "import pccl.core.peer.peer",
        "'integrations' must not",
    ),
    "public names import integrations": ("src/pccl/__init__.py", "import pccl.integrations", "'pccl' must not import"),
    "cli imports integrations": (
        "src/pccl/cli/demo/story.py",
        "import pccl.integrations.ray",
        "'cli' must not import",
    ),
    "c_api reaches around the public API": ("src/pccl/c_api/peers.py", "import pccl.net.thread", "'c_api' must not"),
    "api imports c_api": ("src/pccl/api/communicator.py", "import pccl.c_api", "'api' must not import"),
    "public names import c_api": ("src/pccl/__init__.py", "from pccl.c_api import calls", "'pccl' must not import"),
    "unknown layer": ("src/pccl/helpers/misc.py", "", "is in no layer"),
    # single importers
    "native imported elsewhere": (NET, "from pccl import _native", "only dataplane/native.py"),
    "native imported by its path": (
        "src/pccl/dataplane/reference.py",
        "import pccl._native",
        "only dataplane/native.py",
    ),
    "torch outside training": ("src/pccl/api/communicator.py", "import torch.distributed", "only training/"),
    "torch in an integration": ("src/pccl/integrations/lightning.py", "import torch", "only training/"),
    "ray outside integrations": ("src/pccl/training/diloco.py", "import ray", "only integrations/"),
    "lightning outside integrations": ("src/pccl/training/diloco.py", "import lightning.pytorch", "only integrations/"),
    "ssl outside security": (NET, "import ssl", "only security/"),
    "the package imports a test tool": (
        "src/pccl/cli/demo/story.py",
        "import tests.stress.fleet",
        "not in the wheel",
    ),
    "pickle": (TEST, "from pickle import loads", "runs code when it reads"),
    # purity
    "core with asyncio": (CORE, "import asyncio", "must not import 'asyncio'"),
    "core with socket": (CORE, "import socket", "must not import 'socket'"),
    "core with time": (CORE, "from time import monotonic", "must not import 'time.monotonic'"),
    "core with random": (CORE, "import random", "must not import 'random'"),
    "core with os": (CORE, "import os.path", "must not import 'os.path'"),
    "core with threading": (CORE, "import threading", "must not import 'threading'"),
    "core with logging": (CORE, "import logging", "must not import 'logging'"),
    "core with numpy": (CORE, "import numpy as np", "must not import 'numpy'"),
    "core prints": (CORE, "print(1)", "must not call 'print'"),
    "core hashes": (CORE, "hash('a')", "must not call 'hash'"),
    "for over a set literal": (CORE, "for x in {1, 2}:\n    x", "order of a set"),
    "for over a set call": (CORE, "for x in set('ab'):\n    x", "order of a set"),
    "comprehension over a difference": (CORE, "[x for x in set('ab') - {1}]", "order of a set"),
    "tuple of a set": (CORE, "tuple({1, 2})", "order of a set"),
    "annotated set": (CORE, "def f(lost: set[int]) -> None:\n    for x in lost:\n        x", "order of a set"),
    "attribute that is a set": (CORE, "self.lost: set[int] = set()\nself.lost.pop()", "order of a set"),
    "joined set": (CORE, "names = {x for x in 'ab'}\n', '.join(names)", "order of a set"),
    # words
    "word in a function": (NET, "def add_worker() -> None: ...", "not 'worker'"),
    "word in a class": (NET, "class ClientTable: ...", "not 'client'"),
    "word in an argument": (NET, "def f(world: int) -> None: ...", "not 'world'"),
    "word in a variable": (NET, "seq_nr = 1", "not 'seq nr'"),
    "word in an attribute": (NET, "self.checksum = 1", "not 'checksum'"),
    "word in a plural": (NET, "replicas = 1", "not 'replica'"),
    "word in an f-string": (NET, "f'{1} nodes wait'", "not 'node'"),
    "word in a docstring": (NET, "def f() -> None:\n    '''Ask the coordinator.'''", "not 'coordinator'"),
    "word in a comment": (NET, "x = 1  # the next generation", "not 'generation'"),
    "word in an import": (NET, "import asyncio as client", "not 'client'"),
    "phrase": (NET, "comms_op = 'x'", "not 'comms op'"),
    "channel for a lane": (CORE, "channel = 1", "not 'channel'"),
    "password for a token": ("src/pccl/security/tokens.py", "password = ''", "not 'password'"),
    "shard for a fragment": ("src/pccl/training/diloco.py", "shard = 1", "not 'shard'"),
    "pseudo-gradient for a delta": ("src/pccl/training/diloco.py", "pseudo_gradient = 1", "not 'pseudo gradient'"),
    "worker outside integrations": ("src/pccl/training/diloco.py", "worker = 1", "not 'worker'"),
    # shape
    "no docstring": (NET, None, "opens with a docstring"),
    "long function": (
        NET,
        "def f() -> None:\n" + "    f()\n" * FUNCTION_LINES_MAX,
        f"{FUNCTION_LINES_MAX + 1} lines in 'f'",
    ),
    "long file": (TEST, "x = 1\n" * FILE_LINES_MAX, "lines in a file"),
    "bare except": (TEST, "try:\n    f()\nexcept:\n    raise", "bare except"),
    "swallowed failure": (NET, "try:\n    f()\nexcept Exception:\n    pass", "swallowed"),
    "stress reaches inside": ("tests/stress/doom.py", "plane = communicator._data_plane", "is private"),
    "stress reaches deep": ("tests/stress/doom.py", "self._peer.shell._driver", "is private"),
    "sleep in a test": (TEST, "import time\ntime.sleep(1)", "wait for events"),
    "sleep imported in a test": (TEST, "from time import sleep", "wait for events"),
}


@pytest.mark.parametrize(("path", "code", "sentence"), BAD.values(), ids=BAD)
def test_rule_has_teeth(path, code, sentence):
    found = violations(Source.parse(path, "x = 1\n")) if code is None else report(path, code)
    assert len(found) == 1, found
    assert sentence in found[0]
    assert found[0].startswith(f"{path}:")


GOOD = {
    "core imports below": (CORE, "from pccl.core.effects.master import Send\nfrom pccl.types import PeerId"),
    "core imports itself relatively": (CORE, "from . import ring\nfrom .effects import Send"),
    "core computes": (CORE, "from __future__ import annotations\nimport itertools\nfrom msgspec import Struct"),
    "sorted set": (CORE, "for x in sorted({1, 2}):\n    x"),
    "order does not matter": (CORE, "any(x for x in {1, 2})\nlen({1})\n{x for x in {1, 2}}"),
    "set asked for a member": (CORE, "lost: set[int] = set()\nlost.add(1)\n1 in lost"),
    "errors know effects": (
        "src/pccl/errors.py",
        "from pccl.core.effects.peer_effects import Failure\nimport pccl.types",
    ),
    "config knows limits": ("src/pccl/config.py", "from pccl.core.limits import PeerLimits"),
    "native has its door": ("src/pccl/dataplane/native.py", "from pccl import _native"),
    "training imports torch": ("src/pccl/training/diloco.py", "import torch\nfrom pccl import Communicator"),
    "training uses the public names": ("src/pccl/training/diloco.py", "from pccl import Communicator, SharedState"),
    "net asks security": (NET, "from pccl.security import proofs"),
    "security has ssl": ("src/pccl/security/certificates.py", "import ssl\nfrom pccl.wire import framing"),
    "views read the status": ("src/pccl/views/metrics.py", "from pccl.core.status import Status"),
    "an integration has its library": (
        "src/pccl/integrations/ray.py",
        "import ray\nfrom pccl.training import diloco\nworker = node = 1",
    ),
    "a channel may be TLS": ("src/pccl/security/channels.py", "class Channel: ..."),
    "FSDP has shards": ("src/pccl/training/fsdp2.py", "shards = 1"),
    "party, token and proof are words": ("src/pccl/security/tokens.py", "party = token = role = proof = 1"),
    "stress looks at itself": ("tests/stress/doom.py", "self._point = info._replace(peers=()).peers"),
    "net uses names of asyncio": (NET, "import asyncio\nasyncio.start_server(client_connected_cb=None)"),
    "tests import anything of ours": (TEST, "import pccl.core.master.master\nimport pccl.net"),
    "names of PCCL stay": ("src/pccl/types.py", "GLOBAL_WORLD_SIZE = 1\n'LOCAL_WORLD_SIZE'\nclass MasterNode: ..."),
    "words inside words": (NET, "worldly = 'clientele'"),
    "words in tests are free": (TEST, "worker = 1"),
    "sleep of a shell": (NET, "import time\ntime.sleep(1)"),
    "empty file": ("src/pccl/core/__init__.py", ""),
}


@pytest.mark.parametrize(("path", "code"), GOOD.values(), ids=GOOD)
def test_rule_leaves_good_sources_alone(path, code):
    assert report(path, code) == []


FOLDERS = [
    Source.parse("src/pccl/work.py", '"""Nobody."""'),
    Source.parse("src/pccl/core/master/roster.py", "nobody = 1  # whoever is here, in vain"),
    Source.parse(TEST, "# Nobody counts these, nor is a nobodyness one."),
]


@pytest.mark.parametrize(
    ("left", "sentences"),
    [
        ({"": 1, "core": 3}, []),
        ({"": 1, "core": 2}, ["src/pccl/core: 3 of nobody, "]),
        ({"core": 3}, ["src/pccl/: 1 of nobody, "]),
        ({"": 1, "core": 4}, ["src/pccl/core: only 3 of these words are left: set PLAIN_WORDS_LEFT['core'] to 3"]),
        ({"": 1, "core": 3, "net": 1}, ["src/pccl/net: only 0 "]),
    ],
)
def test_words_that_are_not_plain_are_counted(left, sentences):
    found = list(plain_words(FOLDERS, left))
    assert len(found) == len(sentences)
    assert all(each.startswith(sentence) for each, sentence in zip(found, sentences, strict=True))


def test_core_size_has_teeth():
    half = Source.parse(CORE, '"""Not code."""\n\n# Nor this.\n' + "x = 1\n" * (CORE_LINES_MAX // 2))
    assert list(core_size([half, half])) == []
    assert list(core_size([half, half, Source.parse(CORE, "x = 1\n")])) == [
        f"core/ has {CORE_LINES_MAX + 1} lines of code, the limit is {CORE_LINES_MAX}"
    ]
