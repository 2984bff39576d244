"""An own CA for tests, made with the commands of docs/security.md."""

import functools
import subprocess
from pathlib import Path

from pccl.credentials import CertificateFiles

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class OwnCA:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.ca, self._key = folder / "ca.pem", folder / "ca.key"
        _openssl("req", "-x509", *_KEY, "-days", 30, "-subj", "/CN=a CA", "-keyout", self._key, "-out", self.ca)

    @functools.cache  # noqa: B019
    def issue(self, name, names, *, days=30, usage=""):
        """With these alternative names, in the words of OpenSSL."""
        key, request, cert = (self._folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        extensions = self._folder / f"{name}.ext"
        usage = f"extendedKeyUsage={usage}\n" if usage else ""
        extensions.write_text(f"subjectAltName={names}\n{usage}")
        signing = ("-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-days", days)
        _openssl("x509", "-req", "-in", request, *signing, "-extfile", extensions, "-out", cert)
        return CertificateFiles(self.ca, cert, key)

    def master(self, name="master", names="IP:127.0.0.1,DNS:localhost", **more):
        return self.issue(name, f"{names},URI:pccl:master", **more)._asdict()

    def peer(self, name="anna", role="peer", **more):
        return self.issue(name, f"URI:pccl:{role}", **more)._asdict()

    def revoked(self, name):
        """The list of revoked certificates, in PEM: this one."""
        index, config = self._folder / "index", self._folder / "ca.cnf"
        index.touch()
        config.write_text(f"[ca]\ndefault_ca=ours\n[ours]\ndatabase={index}\ndefault_md=sha256\ndefault_crl_days=1\n")
        signing = ("ca", "-config", config, "-cert", self.ca, "-keyfile", self._key)
        _openssl(*signing, "-revoke", self._folder / f"{name}.pem")
        _openssl(*signing, "-gencrl", "-out", self._folder / "crl.pem")
        return (self._folder / "crl.pem").read_text()
