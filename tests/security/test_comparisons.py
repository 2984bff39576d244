"""What a stranger could guess byte by byte is compared in a time that does not depend on where the first wrong one is.

Looked for in the sources by name. It does not matter for what is no secret (ids, numbers of links, nonces, the id of a
token), and for a key of a dictionary, which is hashed whole.
"""

import ast
from pathlib import Path

import pytest

import pccl

SOURCES = Path(pccl.__file__).parent
SECRETS = {"secret", "proof", "mac", "key", "pin", "token", "_key", "_secret", "link_key", "_content"}
PLACES = sorted(path for folder in ("core", "net", "security") for path in (SOURCES / folder).rglob("*.py"))


def leaks(source):
    """Lines in which something that is called like a secret is compared by `==` or `!=`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            for left, how, right in zip((node.left, *node.comparators), node.ops, node.comparators, strict=False):
                named = {_name(left), _name(right)} & SECRETS
                if isinstance(how, ast.Eq | ast.NotEq) and named and not (_is_empty(left) or _is_empty(right)):
                    yield node.lineno


def _name(node):
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_empty(node):
    return isinstance(node, ast.Constant) and node.value in ("", b"", None)


def test_the_check_finds_what_it_looks_for():
    source = "me.secret == other != ''\nproof != z.proof\nme.secret == ''\nsame(a.mac, mac)\nlen(key) == 32"
    assert list(leaks(source)) == [1, 2]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_no_secret_is_compared_byte_by_byte(path):
    assert not list(leaks(path.read_text()))
