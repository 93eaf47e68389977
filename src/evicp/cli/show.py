"""`evicp show`: what is in the file of a calibration, or of a rule?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evicp.cli import inputs, options
from evicp.cli.printing import print_result
from evicp.cli.rules import is_rule, read_rule


@options.examples("evicp show cal.safetensors", "evicp show cal.safetensors --coverage 0.95 --json")
def show(
    calibration: options.CalibrationFile,
    coverage: options.Coverage = 0.9,
    as_json: options.Json = False,
) -> None:
    """Show the content of a calibration file and its certificate, or the content of a rule."""
    if is_rule(calibration):
        return _show_rule(calibration, as_json=as_json)
    loaded = inputs.load_calibration(calibration)
    certificate = loaded.certificate(coverage)
    origin = {} if loaded.origin is None else loaded.origin.to_dict()
    content: dict[str, Any] = {
        "file": calibration,
        "bytes": Path(calibration).stat().st_size,
        "calibration": repr(loaded),
        "guarantee": loaded.guarantee,
        "class_names": loaded.class_names and list(loaded.class_names),
        "source": None if loaded.source is None else loaded.source.to_dict(),
        "arithmetic": origin.get("arithmetic"),
        "certificate": certificate.to_dict(),
    }
    names = loaded.class_names or ()
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    facts = {
        "file": f"{calibration}, {content['bytes']:,} bytes",
        "content": content["calibration"],
        "class names": f"{len(names):,}: {some}" if names else "none",
        "rows from": str(loaded.source or "unknown"),
        "scores made by": content["arithmetic"] or "unknown",
    }
    lines = [f"{name:<16}{value}" for name, value in facts.items()]
    print_result(as_json, content, "\n".join([*lines, "", str(certificate)]))
    return None


def _show_rule(path: str, *, as_json: bool) -> None:
    """What is in the file of a rule, which has one certificate."""
    rule, size = read_rule(path), Path(path).stat().st_size
    certificate = rule.certificate()
    content = {"file": path, "bytes": size, "rule": repr(rule), "certificate": certificate.to_dict()}
    lines = [f"file            {path}, {size:,} bytes", f"content         {rule!r}"]
    print_result(as_json, content, "\n".join([*lines, "", str(certificate)]))
