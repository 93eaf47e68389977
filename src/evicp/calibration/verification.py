"""Verify that a certificate belongs to a calibration: checksum and recomputed figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING, Any

from evicp.errors import InputError
from evicp.input.messages import some_of
from evicp.tables import text_table

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration

#: What does not follow from the calibration: when and by what it was made, and what was found on other rows.
_NOT_RECOMPUTED = ("version", "date", "observed", "check")
#: Figures of two machines may differ in their last digits.
_DIGITS = 1e-9


@dataclass(frozen=True, repr=False)
class Verification:
    """The result of verifying a certificate.

    Attributes
    ----------
    same_calibration : whether the checksum is that of the calibration
    compared : the figures that were compared
    differences : figures that differ: name, value in the certificate, recomputed value
    not_compared : figures about other rows, which need `evicp evaluate` on those rows
    """

    same_calibration: bool
    compared: tuple[str, ...]
    differences: tuple[tuple[str, Any, Any], ...]
    not_compared: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the certificate belongs to the calibration and all figures are right."""
        return self.same_calibration and not self.differences

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        differences = [{"figure": name, "stated": stated, "found": found} for name, stated, found in self.differences]
        names = ("holds", "same_calibration", "compared", "not_compared")
        return {**{name: getattr(self, name) for name in names}, "differences": differences}

    def __repr__(self) -> str:
        if not self.same_calibration:
            return "The certificate belongs to ANOTHER calibration: the checksums differ."
        rest = (
            f" Not compared, because it is about other rows: {some_of(self.not_compared)}." if self.not_compared else ""
        )
        if not self.differences:
            return f"The certificate belongs to this calibration, and its {len(self.compared)} figures are right.{rest}"
        rows = [[name, str(stated), str(found)] for name, stated, found in self.differences]
        table = text_table(["figure", "certificate", "calibration"], rows)
        return f"The certificate belongs to this calibration, but is NOT RIGHT:\n\n{table}\n\n{rest}".rstrip()


def verify(calibration: Calibration, certificate: Mapping[str, Any]) -> Verification:
    """Recompute a certificate and compare.

    Parameters
    ----------
    calibration : the calibration
    certificate : what `Certificate.to_dict` gave, as read from a file

    >>> from evicp import calibrate
    >>> calibration = calibrate([[2.0, 1.0, 0.0]] * 30, [0] * 30, "lac")
    >>> stated = calibration.certificate(0.9).to_dict()
    >>> verify(calibration, stated)
    The certificate belongs to this calibration, and its 21 figures are right.
    >>> verify(calibration, stated | {"rank": 27}).differences
    (('rank', 27, 28),)
    """
    try:
        made = calibration.certificate(
            certificate["coverage"], confidence=certificate["confidence"], pac=certificate.get("pac")
        ).to_dict()
    except KeyError as error:
        raise InputError(f"a certificate must have {error}; write it with evicp calibrate --json.") from error
    return compared_with(made, certificate)


def compared_with(made: Mapping[str, Any], certificate: Mapping[str, Any]) -> Verification:
    """Compare a certificate with the one made again.

    Parameters
    ----------
    made, certificate : plain values of both
    """
    if "checksum" not in certificate:
        raise InputError("a certificate must have 'checksum'; write it with evicp calibrate --json.")
    if certificate["checksum"] != made["checksum"]:
        return Verification(False, (), (), ())
    compared = tuple(name for name in made if name not in _NOT_RECOMPUTED)
    differences = tuple(_differences(compared, certificate, made))
    others = tuple(name for name in ("observed", "check") if certificate.get(name) is not None)
    return Verification(True, compared, differences, others)


def _differences(names: tuple[str, ...], stated: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Any]:
    for name in names:
        if not _same(stated.get(name), found[name]):
            yield name, stated.get(name), found[name]


def _same(stated: Any, found: Any) -> bool:
    """Whether two plain values are the same, numbers up to their last digits."""
    if isinstance(found, Mapping):
        both = isinstance(stated, Mapping) and stated.keys() == found.keys()
        return both and all(_same(stated[name], found[name]) for name in found)
    if isinstance(found, list | tuple):
        both = isinstance(stated, list | tuple) and len(stated) == len(found)
        return both and all(map(_same, stated, found))
    if isinstance(found, float) and isinstance(stated, float | int) and not isinstance(stated, bool):
        return isclose(stated, found, rel_tol=_DIGITS, abs_tol=_DIGITS)
    return type(stated) is type(found) and bool(stated == found)
