"""`evicp show`: what is in a calibration file?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evicp.cli import inputs, options
from evicp.cli.printing import print_result


@options.examples("evicp show cal.safetensors", "evicp show cal.safetensors --coverage 0.95 --json")
def show(
    calibration: options.CalibrationFile,
    coverage: options.Coverage = 0.9,
    as_json: options.Json = False,
) -> None:
    """What is in a calibration file, and its certificate at a coverage."""
    loaded = inputs.load_calibration(calibration)
    certificate = loaded.certificate(coverage)
    origin = {} if loaded.origin is None else loaded.origin.to_dict()
    content: dict[str, Any] = {
        "file": calibration,
        "bytes": Path(calibration).stat().st_size,
        "calibration": repr(loaded),
        "guarantee": loaded.guarantee,
        "class_names": loaded.class_names and list(loaded.class_names),
        "arithmetic": origin.get("arithmetic"),
        "certificate": certificate.to_dict(),
    }
    names = loaded.class_names or ()
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    facts = {
        "file": f"{calibration}, {content['bytes']:,} bytes",
        "content": content["calibration"],
        "class names": f"{len(names):,}: {some}" if names else "none",
        "scores made by": content["arithmetic"] or "unknown",
    }
    lines = [f"{name:<16}{value}" for name, value in facts.items()]
    print_result(as_json, content, "\n".join([*lines, "", str(certificate)]))
