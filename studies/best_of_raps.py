"""How far the choice of RAPS's parameters and of every temperature matters, for RAPS, LAC and ECP."""

from __future__ import annotations

from collections.abc import Sequence

from evicp.evaluation.compare import Comparison
from evicp.evaluation.tuning import Tuned
from evicp.method.scores import LAC, RAPS
from study import Finding, Logits, compared, paired, published

TEMPERATURES = (0.5, 0.65, 0.8, 1.0, 1.25, 1.5)
LAMBDAS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
K_REG = (1, 2, 3, 5, 10)
TRIALS = 20


def best_of_raps(networks: Sequence[Logits]) -> Finding:
    """SAT of ECP at T = 1 and at chosen temperatures, beside RAPS and LAC with all parameters chosen."""
    rows: list[tuple[str, ...]] = []
    for data in networks:
        grids = _grids(data.logits.shape[1])
        chosen = compared(data, [published(), LAC(), RAPS(), *grids.values()], trials=TRIALS)
        for row in chosen.evaluations:
            title = f"{row.split()[0]}, chosen on other rows" if "tuned" in row else f"{row}, as it is"
            rows.append((data.name, title, *_figures(chosen, row)))
        for name, grid in grids.items():
            others = [candidate for candidate in grid.candidates() if candidate != published()]
            everything = compared(data, [published(), *others], trials=TRIALS)
            of_its_own = [row for row in everything.evaluations if row.startswith(name)]
            best = max(of_its_own, key=lambda row, of=everything: of.mean(row, "sat"))  # type: ignore[misc]
            rows.append((data.name, f"{best}, chosen on the test rows", *_figures(everything, best)))
    head = ("network", "score", "size", "SSCV", "SAT", "SAT less that of ECP at T = 1 (standard error)")
    title = (
        f"Parameters chosen by SAT, on rows of their own or on the test rows: coverage 0.9, means over {TRIALS} splits"
    )
    return Finding("best_of_raps", title, head, tuple(rows))


def _grids(n_classes: int) -> dict[str, Tuned]:
    k_reg = [k for k in K_REG if k < n_classes]
    return {
        "ecp": Tuned(published(), temperature=TEMPERATURES),
        "lac": Tuned(LAC(), temperature=TEMPERATURES),
        "raps": Tuned(RAPS(), lam=LAMBDAS, k_reg=k_reg, temperature=TEMPERATURES),
    }


def _figures(comparison: Comparison, name: str) -> tuple[str, ...]:
    means = (f"{comparison.mean(name, metric):.3f}" for metric in ("mean_size", "sscv", "sat"))
    difference, error, _ = paired(comparison, name, "ecp", "sat")
    return (*means, f"{difference:+.3f} ({error:.3f})" if name != "ecp" else "-")
