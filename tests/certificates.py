"""Certificates for tests of TLS, made when they run."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Issued:
    """Files of a certificate and its key, and of both."""

    cert: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates.

    Parameters
    ----------
    folder
        Where the files go.
    name
        Of the authority, and its file.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        self._cert = (
            _builder(subject, subject, self._key, days=(-2, 2))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._cert.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        hosts: tuple[str, ...] = ("127.0.0.1", "localhost"),
        days: tuple[float, float] = (-1, 1),
        password: str = "",
    ) -> Issued:
        """Return a certificate.

        Parameters
        ----------
        name
            Of its owner, and of its files.
        hosts
            That it is for.
        days
            From when to when it is valid, from now.
        password
            Of the key; "" for none.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_host(host) for host in hosts]
        cert = (
            _builder(_name(name), self._cert.subject, key, days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        hidden = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        texts = {
            "cert": cert.public_bytes(Encoding.PEM),
            "key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden),
        }
        texts["both"] = texts["cert"] + texts["key"]
        files = {}
        for kind, text in texts.items():
            files[kind] = self._folder / f"{self._name}-{name}-{kind}.pem"
            files[kind].write_bytes(text)
        return Issued(**files)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: tuple[float, float],
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(days=days[0]))
        .not_valid_after(now + dt.timedelta(days=days[1]))
    )
