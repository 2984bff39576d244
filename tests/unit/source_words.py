"""One word per concept, and plain ones: the rules of `source_rules.py` that are about words.

Owns the words. Must not know where the sources lie.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.unit.source_file import Source

SAY_INSTEAD = {
    "coordinator": "master",
    "client": "peer",
    "node": "peer",
    "worker": "peer",
    "replica": "peer",
    "world": "roster or group",
    "team": "group",
    "generation": "epoch",
    "channel": "lane",
    "consensus request": "vote",
    "comms op": "collective",
    "seq nr": "attempt",
    "piece": "chunk or segment",
    "checksum": "digest",
    "iteration": "round or step",
    "pseudo gradient": "delta",
    "shard": "fragment",
    "password": "token",
    "passphrase": "token",
}
"""Words that have one in our vocabulary, and that nothing forces on us.

Left out on purpose. Forced by Python or its libraries: server and stream (asyncio), cancel (asyncio and futures), block
(blocking calls), action and command (argparse), status (exit status). Forced by PCCL's names: pending, result code.
Plain English that a reader would miss: left, right, term, drop, registered; and key, which a dict has, too."""

AT_HOME = {
    "channel": ("security", "net", "dataplane"),
    "client": ("security.authority",),
    "shard": ("training.fsdp", "training.shards", "training.data", "training.rows"),
    "worker": ("integrations", "training.data"),
    "node": ("integrations", "training.fsdp", "training.mesh"),
    "world": ("integrations", "training.mesh"),
    "replica": ("integrations",),
}
"""Where such a word means something else, as modules or the beginnings of their names: a channel is what the bytes of a
lane go through, plain or TLS; certificates have a use called clientAuth; FSDP has shards, and nodes that are parties to
a run; datasets that are read in order have shards, too; a DataLoader has workers; an integration speaks the language of
the library it is for."""

PUBLIC_NAMES_OF_PCCL = (
    "LARGEST_PEER_GROUP_WORLD_SIZE",
    "GLOBAL_WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "local_world_size",
    "world_size",
    "MasterNode",
)
"""Scripts written for PCCL use these; they stay."""

OUR_PUBLIC_NAMES = ("Shards",)
"""Of a dataset: no other word is known to those who have one."""

_PUBLIC = re.compile("|".join(rf"\b{name}\b" for name in (*PUBLIC_NAMES_OF_PCCL, *OUR_PUBLIC_NAMES)))
_BANNED = re.compile("|".join(rf"\b{word}s?\b" for word in SAY_INSTEAD))
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words(source: Source) -> Iterator[str]:
    """One word per concept, in the names we give, in strings and in comments."""
    if not source.in_package:
        return
    for line, text in [*_names_given(source.tree), *_strings(source.tree), *_comments(source.text)]:
        plain = _CAMEL.sub(" ", _PUBLIC.sub(" ", text)).replace("_", " ").lower()
        for found in _BANNED.finditer(plain):
            word = found.group().removesuffix("s")
            if ".".join(source.module).startswith(AT_HOME.get(word, ("-",))):
                continue
            yield f"{source.path}:{line}: say {SAY_INSTEAD[word]!r}, not {word!r} (in {text.strip()[:60]!r})"


def _names_given(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names where we choose them. Where they are only used they may be somebody else's, such as `asyncio.Server`."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


PLAIN_WORDS = {"nobody": "no peer", "whoever": "peers that", "somebody": "a peer", "anew": "again", "in vain": "unused"}
"""Words that hide which peer, candidate or member is meant, or that an engineer would not use, and what to write."""

PLAIN_WORDS_LEFT = {"": 0, "api": 0, "compat": 0, "core": 0, "net": 0, "wire": 0, "dataplane": 0, "cli": 0}
"""How often they still stand in each folder of `src/pccl/` (`""`: the modules beside them). A number may only fall."""

_HAZY = re.compile("|".join(rf"\b{word}\b" for word in PLAIN_WORDS), re.IGNORECASE)


def plain_words(sources: list[Source], left: dict[str, int]) -> Iterator[str]:
    """A ratchet: no folder has more of these words than it had, and when it has fewer, its number is lowered."""
    found = dict.fromkeys(left, 0)
    for source in sources:
        if source.in_package:
            folder = source.path.parts[2] if len(source.path.parts) > 3 else ""
            found[folder] = found.get(folder, 0) + len(_HAZY.findall(source.text))
    for folder, count in found.items():
        limit, where = left.get(folder, 0), f"src/pccl/{folder}"
        if count > limit:
            yield f"{where}: {count} of {', '.join(PLAIN_WORDS)}, {limit} allowed: write {list(PLAIN_WORDS.values())} …"
        if count < limit:
            yield f"{where}: only {count} of these words are left: set PLAIN_WORDS_LEFT[{folder!r}] to {count}"
