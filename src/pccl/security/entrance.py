"""What a process that dials a master proves itself with: its token, its certificate, or nothing.

Owns the choice. Must not know what it connects for.
"""

from pccl.credentials import CertificateFiles
from pccl.security.authority import Authority
from pccl.security.certified import CertifiedPeerGuard
from pccl.security.control import MakeGuard, PeerGuard
from pccl.security.renewing import Renewing
from pccl.security.tokens import parse


def make_guard(token: str, files: CertificateFiles | None) -> MakeGuard | None:
    """Of these, at most one of which is there; None for neither. Raises `UsageError`."""
    if files is not None:
        own = Authority(files)
        context = Renewing(files, lambda: own.dialling(names=True))
        return lambda host: CertifiedPeerGuard(context.get(), host)
    if not token:
        return None
    parsed = parse(token)
    return lambda host: PeerGuard(parsed)
