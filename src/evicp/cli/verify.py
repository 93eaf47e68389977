"""`evicp verify`: is a certificate that of a calibration?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from evicp.calibration.verification import compared_with
from evicp.calibration.verification import verify as verify_certificate
from evicp.cli import inputs, options
from evicp.cli.printing import print_result
from evicp.cli.rules import is_rule, read_rule
from evicp.errors import FileError
from evicp.io.json_text import plain
from evicp.io.paths import as_path, read_text

Certificate = Annotated[
    str,
    typer.Argument(metavar="CERTIFICATE", help="JSON, as printed by evicp calibrate --json.", show_default=False),
]


@options.examples(
    "evicp verify cal.safetensors certificate.json",
    "evicp calibrate val.npz -o cal.safetensors --json > certificate.json",
)
def verify(calibration: options.CalibrationFile, certificate: Certificate, as_json: options.Json = False) -> None:
    """Verify that a certificate belongs to a calibration or a rule: checksums and recomputed figures.

    Exit code 1 means that the certificate belongs to another calibration, or that a figure is wrong.
    """
    if is_rule(calibration):
        found = compared_with(plain(read_rule(calibration).certificate().to_dict()), _read(certificate))
    else:
        loaded = inputs.load_calibration(calibration, "comes before CERTIFICATE")
        found = verify_certificate(loaded, _read(certificate))
    print_result(as_json, found.to_dict(), found)
    if not found.holds:
        raise typer.Exit(1)


def _read(path: str) -> Mapping[str, Any]:
    """A certificate by itself, or as one part of what a command printed."""
    try:
        content = json.loads(read_text(as_path(path)))
    except FileError:
        raise
    except (ValueError, RecursionError):
        content = None
    inner = content.get("certificate") if isinstance(content, Mapping) else None
    found = inner if isinstance(inner, Mapping) else content  # of a rule, that is the title
    if not isinstance(found, Mapping):
        raise FileError(f"cannot read {path}: it is not a certificate in JSON.")
    return found
