"""`pccl doctor`: what would keep a peer on this machine from joining, and the fix. It never joins.

Owns the order of the checks, and those that need a master. A fault is named once: what cannot be found out because of
it is left out.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import TextIO

from pccl.cli import machine_checks
from pccl.cli.ask import REMEDY, Entrance, find_entrance
from pccl.cli.exits import Exit
from pccl.config import Address, PeerConfig, Places
from pccl.core.messages.observers import AskProbe, AskStatus, Probed
from pccl.core.status import Status
from pccl.credentials import NOT_PASSED, CertificateSettings
from pccl.environment import look_up
from pccl.errors import UsageError
from pccl.net.observing import Unreachable, ask, resolve
from pccl.net.probing import ProbedPort
from pccl.net.sockets import in_words
from pccl.release import release
from pccl.views.doctor import FAIL, OK, WARN, Finding, facts, lines
from pccl.views.status import health

RESOLVE_S, ANSWER_S, PROBE_S = 3.0, 4.0, 6.0
"""For each question; a doctor has an answer within ten seconds. The master itself dials for four."""

CLOCK_S = 60.0
"""Clocks that differ by more make logs of two machines hard to compare, and tokens end too early."""


def examine(address: str | None, as_json: bool, out: TextIO, certificates: CertificateSettings = NOT_PASSED) -> int:
    """Look at everything and print what was found; the exit status says how bad it is."""
    given = address or look_up("PCCL_MASTER")
    findings = [*machine_checks.installation(), *machine_checks.variables()]
    findings += [machine_checks.buffers(), machine_checks.pauses()]
    try:
        config = PeerConfig.resolve(given or "localhost", 0, 0, Places(certificates=certificates), {})
        findings.append(machine_checks.descriptors(config))
        findings += asyncio.run(_all(config, find_entrance(given, certificates) if given else None))
    except UsageError as error:
        findings.append(Finding("settings", FAIL, str(error), "correct this setting"))
    settings = machine_checks.settings(address)
    if as_json:
        print(json.dumps(facts(findings, settings)), file=out)
    else:
        print("\n".join(lines(findings, settings)), file=out)
    if any(each.check == "master" and each.level == FAIL for each in findings):
        return Exit.UNREACHABLE
    return Exit.BROKE if any(each.level == FAIL for each in findings) else Exit.DONE


async def _all(config: PeerConfig, master: Entrance | None) -> list[Finding]:
    return [finding async for finding in _network(config, master)]


async def _network(config: PeerConfig, master: Entrance | None) -> AsyncIterator[Finding]:
    """The port of this peer, the master, and how the one sees the other."""
    port = ProbedPort(nonce := secrets.token_hex(8))
    number = 0
    try:
        number = port.open(config.listen.host, config.listen.port)
        yield Finding("listen", OK, f"port {number} can be opened{'' if config.listen.port else ' (the kernel chose)'}")
    except OSError as error:
        fix = "another process has it: give this peer another port (PCCL_LISTEN), or leave that to the kernel"
        yield Finding("listen", FAIL, f"cannot listen on {config.listen} (PCCL_LISTEN): {in_words(error)}", fix)
    try:
        if master is None:
            fix = "pass ADDRESS, or set PCCL_MASTER"
            yield Finding("master", WARN, "no address is given, so no master was asked", fix)
            return
        findings, seen = await _ask(master)
        for finding in findings:
            yield finding
        if number and seen:
            for finding in await _reach(config, master, (number, nonce), seen):
                yield finding
    finally:
        port.close()


async def _ask(master: Entrance) -> tuple[list[Finding], str]:
    """What the master answers, and as whom it sees this machine; no machine if it does not answer."""
    findings: list[Finding] = []
    try:
        found = await resolve(master.address, RESOLVE_S)
        findings.append(Finding("name", OK, f"{master.address.host} is {', '.join(found)}"))
        began = time.time()
        status = await ask(master.address, AskStatus(), ANSWER_S, master.make_guard)
        if not isinstance(status, Status):
            raise Unreachable("protocol", f"it answered with {type(status).__name__}")
    except Unreachable as error:
        findings.append(Finding("master", FAIL, f"no master at {master}: {error}", REMEDY[error.phase]))
        return findings, ""
    took = time.time() - began
    what = f"{master} answers in {took * 1e3:.0f} ms: run {status.run}, {health(status)}"
    findings.append(Finding("master", OK, what))
    if status.release != release():
        what = f"the master has pccl {status.release}, here is {release()}"
        findings.append(Finding("releases", WARN, what, "install the same"))
    findings.append(Finding("seen as", OK, f"the master sees this machine as {status.seen}"))
    findings.append(_clock(began + took / 2 - status.unix_s))
    return findings, status.seen


def _clock(apart: float) -> Finding:
    if abs(apart) <= CLOCK_S:
        return Finding("clock", OK, f"{abs(apart):.1f} s from the master's")
    ahead = "ahead of" if apart > 0 else "behind"
    what = f"this clock is {abs(apart):.0f} s {ahead} the master's"
    return Finding("clock", WARN, what, "run NTP on both machines")


async def _reach(config: PeerConfig, master: Entrance, listening: tuple[int, str], seen: str) -> list[Finding]:
    """Whether others can dial this machine where it says that it is. The master dials back only where a question comes
    from: what is announced elsewhere was not tried, and whether the own port is open does not matter then."""
    announced = None
    if config.announce.host:
        announced = await _announced(config.announce, seen)
        if announced.level != OK:
            return [announced]
    port, nonce = listening
    chosen = config.announce.port or port
    try:
        answer = await ask(master.address, AskProbe(chosen, nonce), PROBE_S, master.make_guard)
    except Unreachable as error:
        return [Finding("dial back", WARN, f"the master was asked to dial this machine, and: {error}", "try again")]
    assert isinstance(answer, Probed), "the only other answer"
    where = Address(answer.host, chosen)
    if answer.cause:
        return [_not_dialled(config, port, f"the master cannot dial this machine at {where}: {answer.cause}")]
    what = f"others can dial this machine at {where} ({answer.seconds * 1e3:.0f} ms)"
    return [Finding("dial back", OK, what), *([announced] if announced else [])]


def _not_dialled(config: PeerConfig, port: int, what: str) -> Finding:
    if config.announce.port:
        fix = "set PCCL_ANNOUNCE to an address that others can dial, or leave it unset"
        return Finding("dial back", FAIL, what, fix)
    fix = f"open TCP port {port} in the firewall (PCCL_LISTEN fixes it), or set PCCL_ANNOUNCE to where it is forwarded"
    # Without an open port a peer still works as long as its neighbours can be dialled.
    return Finding("dial back", FAIL if config.listen.port else WARN, what, fix)


async def _announced(announced: Address, seen: str) -> Finding:
    """Whether the master can try it: it dials only where the question comes from."""
    try:
        found = await resolve(announced, RESOLVE_S)
    except Unreachable as error:
        fix = "set PCCL_ANNOUNCE to an address that others can dial, or leave it unset"
        return Finding("announce", FAIL, f"PCCL_ANNOUNCE is {announced.host}: {error}", fix)
    if seen in found:
        return Finding("announce", OK, f"PCCL_ANNOUNCE is {announced.host}, where the master sees this machine")
    what = f"PCCL_ANNOUNCE is {announced.host} ({', '.join(found)}), which the master did not dial: it sees {seen}"
    return Finding("announce", WARN, what, "make sure that other peers can dial it, or leave it unset")
