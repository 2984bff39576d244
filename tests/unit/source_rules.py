"""What our sources must look like, as pure functions from one parsed file to the sentences that say what is wrong.

Owns the rules and their tables. Must not know where the sources lie: `test_sources.py` reads them.
"""

import ast
from collections.abc import Callable, Iterator

from tests.unit.source_file import Source
from tests.unit.source_words import words

Rule = Callable[[Source], Iterator[str]]

# ── imports ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_SETTINGS = ("types", "core.limits", "errors")
_BELOW_NET = (
    "types",
    "codec",
    "core",
    "errors",
    "arguments",
    "called",
    "config",
    "credentials",
    "threads",
    "uplink",
    "environment",
    "release",
    "logs",
    "wire",
    "security",
    "dataplane",
)

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "types": (),
    "codec": ("types",),
    "core": ("types", "codec"),
    "errors": ("types", "core.effects"),
    "config": (*_SETTINGS, "arguments", "called", "environment", "credentials", "threads", "uplink"),
    "called": (*_SETTINGS, "arguments", "core.names", "environment"),
    "threads": (*_SETTINGS, "arguments", "environment"),
    "uplink": (*_SETTINGS, "environment"),
    "credentials": (*_SETTINGS, "environment"),
    "environment": _SETTINGS,
    "release": (),
    "logs": (*_SETTINGS, "core.effects", "config", "environment"),
    "wire": ("types", "core", "errors"),
    "security": ("types", "core", "errors", "config", "credentials", "wire"),
    "dataplane": ("types", "codec", "core", "errors"),
    "solver": ("types",),
    "net": (*_BELOW_NET, "solver"),
    "arguments": ("types", "errors"),
    "compat": ("arguments", "types", "codec", "errors", "dataplane"),
    "api": (*_BELOW_NET, "net", "compat", "training.state"),
    "": (*_BELOW_NET, "net", "compat", "api"),
    "training": ("types", "errors", "dataplane.native", ""),
    "integrations": ("types", "errors", "credentials", "training", ""),
    "views": ("types", "errors", "config", "environment", "release", "core.status", ""),
    "c_api": ("types", "errors", "arguments", "dataplane.tensors.buffers", ""),
    "cli": (*_BELOW_NET, "net", "api", "views", ""),
    "__main__": ("cli",),
}
"""What each part may import inside the package: `types ← core ← wire ← security ← net ← api ← training, views,
integrations, cli`, `dataplane` beside `wire`. A name with a dot grants that module only; the empty name is the package
itself: its public names. Parts that are still to come stand here already, so that adding them loosens nothing: training
and integrations use the public API, training one kernel of the native part beside it, and integrations may leave
credentials for what they start; views read `core.status` and
decide nothing, no part imports an integration, `c_api` gives programs in C the public API and names tensors by their
address, and what a connection must prove is known to `net/` through `security/`
alone."""

CORE_MAY_IMPORT = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "hmac",  # compares in constant time
    "ipaddress",  # reads and computes addresses, looks up none
    "itertools",
    "math",
    "msgspec",
    "pccl",
    "re",
    "typing",
}
"""Computation only. A list of what is forbidden would always be one clock short."""

CORE_MAY_NOT_CALL = {"open", "print", "input", "breakpoint", "eval", "exec", "hash"}
"""I/O, and `hash`, whose values differ from run to run: a seed of the simulator must replay anywhere."""

RUNS_CODE_WHEN_READ = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def imported_modules(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Every module named by an import, with `from a import b` told as `a.b`: b may be a module or a name in it."""
    package = ("pccl", *source.module)
    if source.path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            prefix = ".".join((*base, node.module) if node.module else base)
            for alias in node.names:
                yield node, f"{prefix}.{alias.name}"


def import_direction(source: Source) -> Iterator[str]:
    if not source.in_package:
        return
    own = source.module[0] if source.module else ""
    if own not in MAY_IMPORT:
        yield f"{source.path}:1: {own!r} is in no layer: decide in MAY_IMPORT what it may import, and who it"
        return
    granted = (*MAY_IMPORT[own], own)
    for node, name in imported_modules(source):
        if name.split(".")[0] != "pccl":
            continue
        target = name.removeprefix("pccl").removeprefix(".")
        if target.split(".")[0] == "_native":
            continue  # has a rule of its own
        if target.split(".")[0] not in MAY_IMPORT:
            target = ""  # `from pccl import Communicator`: a public name of the package itself
        if not any(target == grant or (grant and target.startswith(f"{grant}.")) for grant in granted):
            yield source.at(node, f"{own or 'pccl'!r} must not import {name!r}")


ONLY_IMPORTER = {
    "torch": "training",
    "ray": "integrations",
    "transformers": "integrations",
    "accelerate": "integrations",
    "lightning": "integrations",
    "pytorch_lightning": "integrations",
    "ssl": "security",
    "cryptography": "security",
}
"""Libraries that one folder alone may import: `import pccl` must never load them, and what a certificate or a proof is
shall be decided in one place."""


def single_importers(source: Source) -> Iterator[str]:
    """The native part has one door, and so have large libraries; our own tools have none."""
    if not source.in_package:
        return
    for node, name in imported_modules(source):
        if "_native" in name.split(".") and source.module != ("dataplane", "native"):
            yield source.at(node, "only dataplane/native.py imports _native")
        library = name.split(".")[0]
        if library in ("tests", "bench"):
            yield source.at(node, f"{library}/ is not in the wheel: the package must not import it")
        folder = ONLY_IMPORTER.get(library)
        if folder is not None and source.module[:1] != (folder,):
            yield source.at(node, f"only {folder}/ imports {library}")


def no_pickle(source: Source) -> Iterator[str]:
    for node, name in imported_modules(source):
        if name.split(".")[0] in RUNS_CODE_WHEN_READ:
            yield source.at(node, f"{name!r} runs code when it reads: messages are msgspec structs")


# ── purity of the core ───────────────────────────────────────────────────────────────────────────────────────────────


def core_imports(source: Source) -> Iterator[str]:
    if source.in_core:
        for node, name in imported_modules(source):
            if name.split(".")[0] not in CORE_MAY_IMPORT:
                yield source.at(node, f"the core is pure: it must not import {name!r}")


def core_calls(source: Source) -> Iterator[str]:
    if source.in_core:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CORE_MAY_NOT_CALL:
                yield source.at(node, f"the core is pure: it must not call {node.func.id!r}")


_ORDER_DOES_NOT_MATTER = {"sorted", "set", "frozenset", "any", "all", "len", "sum", "min", "max", "bool"}
_KEEPS_ORDER = {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "dict", "deque", "next"}
_SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}


def core_order(source: Source) -> Iterator[str]:
    """Sets of strings have another order in each process, so no effect may follow from one.

    A set is known by its literal, its constructor or the annotation of its name in the same file: enough to catch the
    slip, at the price of an unneeded `sorted` when two things share a name.
    """
    if not source.in_core:
        return
    names = _names_of_sets(source.tree)
    harmless = {
        argument
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ORDER_DOES_NOT_MATTER
        for argument in node.args
    }
    for node in ast.walk(source.tree):
        for iterated in () if node in harmless else _iterated_in_order(node):
            if _is_set(iterated, names):
                yield source.at(iterated, f"order of a set: wrap {ast.unparse(iterated)!r} in sorted(), or use a dict")


def _iterated_in_order(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.For(iter=iterated):
            return [iterated]
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            return [generator.iter for generator in node.generators]
        case ast.Starred(value=value):
            return [value]
        case ast.Call(func=ast.Name(id=name)) if name in _KEEPS_ORDER:
            return list(node.args)
        case ast.Call(func=ast.Attribute(attr="join" | "extend")):
            return list(node.args)
        case ast.Call(func=ast.Attribute(attr="pop", value=value), args=[]):
            return [value]
    return []


def _names_of_sets(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=annotation):
                if _is_set_type(annotation):
                    names.add(name)
            case ast.arg(arg=name, annotation=annotation) if annotation is not None:
                if _is_set_type(annotation):
                    names.add(name)
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value):
                if _is_set(value, set()):
                    names.add(name)
    return names


def _is_set_type(annotation: ast.expr) -> bool:
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(base, ast.Name) and base.id in {"set", "frozenset", "AbstractSet"}


def _is_set(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(attr=method)) if method in _SET_METHODS:
            return True
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), left=left, right=right):
            return _is_set(left, names) or _is_set(right, names)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in names
    return False


# ── shape ────────────────────────────────────────────────────────────────────────────────────────────────────────────

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
CORE_LINES_MAX = 6060
"""Hard limits, some way above what we aim at (40, 300, 6,000): they stop growth, nothing more. In `core/` lines of code
count: a limit that counted docstrings too would be a limit on explaining. One in nine of them is an import, and more
than a thousand are the way back to a master (docs/recovery.md); some hundred are about peers that are admitted and
hostile, of which eighty about what they report to a restarted master (`core/master/tickets.py`), and one hundred and
fifty about peers that come and go together (`core/master/parties.py`); three hundred are how many lanes links have
(`core/master/lanes.py`, `core/rules/lanes.py`): what grows and goes back has to remember; and thirty how a collective
is divided among threads (`core/rules/schedule.py`), which all of its peers must do alike."""


def docstring(source: Source) -> Iterator[str]:
    """A file without a statement, such as an empty `__init__.py`, owns nothing that needs saying."""
    if source.tree.body and ast.get_docstring(source.tree) is None:
        yield f"{source.path}:1: a module opens with a docstring: what it owns and must not know"


def sizes(source: Source) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"{source.path}:1: {lines} lines in a file, the limit is {FILE_LINES_MAX}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield source.at(node, f"{lines} lines in {node.name!r}, the limit is {FUNCTION_LINES_MAX}")


def no_swallowed_failure(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        match node:
            case ast.ExceptHandler(type=None):
                yield source.at(node, "bare except: name what you expect")
            case ast.ExceptHandler(type=ast.Name(id="Exception" | "BaseException"), body=[ast.Pass()]):
                yield source.at(node, "a failure of any kind is swallowed: name what you expect")


def no_sleep_in_tests(source: Source) -> Iterator[str]:
    if source.path.parts[0] != "tests":
        return
    for node, name in imported_modules(source):
        if name == "time.sleep":
            yield source.at(node, "tests wait for events, not for time to pass")
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(attr="sleep", value=ast.Name(id="time")):
                yield source.at(node, "tests wait for events, not for time to pass")


_PUBLIC_UNDERSCORES = {"_replace", "_asdict", "_exit"}
"""Documented in spite of their names: of named tuples, and of `os`."""


def stress_stays_outside(source: Source) -> Iterator[str]:
    """The stress tool sees the library as any other program can: no private attribute of another object."""
    if source.path.parts[:2] != ("tests", "stress") or source.path.name.startswith("test_"):
        return
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(attr=name, value=value) if name.startswith("_") and not name.endswith("__"):
                ours = isinstance(value, ast.Name) and value.id in ("self", "cls")
                if not ours and name not in _PUBLIC_UNDERSCORES:
                    yield source.at(node, f"{ast.unparse(node)!r} is private: find a public way, or make one")


RULES: tuple[Rule, ...] = (
    import_direction,
    single_importers,
    no_pickle,
    core_imports,
    core_calls,
    core_order,
    words,
    docstring,
    sizes,
    no_swallowed_failure,
    no_sleep_in_tests,
    stress_stays_outside,
)


def violations(source: Source) -> list[str]:
    """All that is wrong with one file."""
    return [sentence for rule in RULES for sentence in rule(source)]


def code_lines(source: Source) -> int:
    """Lines with code on them: no blanks, comments or docstrings."""
    explained = {
        line
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    text = enumerate(source.text.splitlines(), start=1)
    return sum(line not in explained and bool(content.split("#")[0].strip()) for line, content in text)


def core_size(sources: list[Source]) -> Iterator[str]:
    """The one rule that needs all files at once."""
    lines = sum(code_lines(source) for source in sources if source.in_core)
    if lines > CORE_LINES_MAX:
        yield f"core/ has {lines} lines of code, the limit is {CORE_LINES_MAX}"
