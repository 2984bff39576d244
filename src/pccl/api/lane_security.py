"""What a peer proves itself with on its lanes, a new one for each Communicator.

Owns the choice of the library that makes records: that of the data plane. Must not know tokens or masters.
"""

import secrets

from pccl.environment import look_up
from pccl.net.proving import LaneSecurity
from pccl.security import certificate


def make_lane_security(data_plane: str, lane_tls: bool) -> LaneSecurity:
    """For a data plane of this name. Raises `UsageError` when the native one finds no OpenSSL: there is nothing less
    that it could do instead."""
    own = certificate.make(secrets.token_bytes(32))
    if not lane_tls:
        return LaneSecurity(own.pin, None)
    from pccl.security.lanes import StandardTls, openssl_files

    if data_plane == "reference":
        return LaneSecurity(own.pin, StandardTls(own))
    from pccl.dataplane.native import NativeTls

    return LaneSecurity(own.pin, NativeTls(own.der, own.key_der, openssl_files(look_up("PCCL_LIBSSL"))))
