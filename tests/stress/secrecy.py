"""A drill behind a token: its secret, the settings by which its processes use it, and what no log may show.

Owns the two files. Must not know what the processes do.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from pccl.security import certificate, control, tokens
from pccl.security.secret import load_or_make


@dataclass(frozen=True)
class Secrecy:
    """Of one drill."""

    secret_file: Path
    token_file: Path
    hidden: tuple[str, ...]
    """What must be in no log: the secret, and the token."""

    @classmethod
    def make(cls, folder: Path) -> "Secrecy":
        """A secret, and the token that its master prints; a master that is started again has the same."""
        secret_file, token_file = folder / "drill.secret", folder / "drill.token"
        secret = load_or_make(secret_file)
        pin = certificate.make(control.certificate_seed(secret)).pin
        token = tokens.mint(secret, tokens.first_claim(secret), pin).text()
        with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(token)
        return cls(secret_file, token_file, (token, secret_file.read_text().split()[-1]))

    @property
    def master_settings(self) -> dict[str, str]:
        """By name of the variable."""
        return {"PCCL_SECRET_FILE": str(self.secret_file)}

    @property
    def peer_settings(self) -> dict[str, str]:
        """The same; a file, since others may see the environment of a process."""
        return {"PCCL_TOKEN_FILE": str(self.token_file)}
