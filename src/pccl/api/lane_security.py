"""What a peer proves itself with on its lanes, a new one for each Communicator.

Owns the choice of the library that makes records: that of the data plane. Must not know tokens or masters.
"""

import secrets
from functools import partial

from pccl.dataplane.connection import Tls
from pccl.environment import look_up
from pccl.net.proving import LaneSecurity
from pccl.security import certificate
from pccl.security.authority import Authority
from pccl.security.lanes import CertifiedLanes, CertifiedStandardTls, StandardTls, openssl_files


def make_lane_security(data_plane: str, lane_tls: bool, own: Authority | None = None) -> LaneSecurity:
    """For a data plane of this name; with the certificate of an own CA, if there is one. Raises `UsageError` when the
    native one finds no OpenSSL: there is nothing less that it could do instead."""
    if own is not None:
        lanes = CertifiedLanes(own, partial(_certified, data_plane, own))
        pin, present = lanes.present()
        return LaneSecurity(pin, present if lane_tls else None, lanes)
    made = certificate.make(secrets.token_bytes(32))
    if not lane_tls:
        return LaneSecurity(made.pin, None)
    if data_plane == "reference":
        return LaneSecurity(made.pin, StandardTls(made))
    from pccl.dataplane.native import NativeTls

    return LaneSecurity(made.pin, NativeTls(made.der, made.key_der, openssl_files(look_up("PCCL_LIBSSL"))))


def _certified(data_plane: str, own: Authority) -> Tls:
    if data_plane == "reference":
        return CertifiedStandardTls(own)
    from pccl.dataplane.native import CertifiedTls

    own.accepting()  # What is wrong with the files is better said here.
    ca, cert, key = map(str, own.files)
    return CertifiedTls(cert, key, ca, openssl_files(look_up("PCCL_LIBSSL")))
