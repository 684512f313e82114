"""Norms, squares and sums of private rows are computed in `winsor.core.arithmetic` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import winsor

ROOMS = Path(winsor.__file__).parent
FILES = [
    path for room in ("tables", "features", "metrics") for path in (ROOMS / room).rglob("*.py")
]
CALLS = {"sqrt", "norm", "vector_norm", "square", "einsum", "vdot", "pow", "power"}
SCALAR = {"math", "arithmetic"}  # math refuses arrays

RELEASED, SETTINGS, EACH = "what was released", "public settings", "one row's own transform"
ALLOWED = {
    "tables/additive/descent.py": {"Descent.response": SETTINGS},
    "tables/additive/fitting.py": {"Fit._chance": RELEASED, "_line": RELEASED},
    "tables/additive/pairs.py": {"candidates": RELEASED, "_score": RELEASED, "pair_sums": SETTINGS},
    "tables/additive/shapes.py": {"Shape": RELEASED},
    "tables/additive/shrinkage.py": {"": RELEASED},
    "tables/additive/terms.py": {"Term.effective": RELEASED, "Term.square": RELEASED}
    | {"Term.curvature": RELEASED},
    "tables/descent.py": {"_Caution": RELEASED, "project": RELEASED},
    "tables/linear/base.py": {"PrivateLinearModel._task": SETTINGS},
    "tables/linear/batches.py": {"BlockPoisson._draw": SETTINGS},
    "tables/linear/flat.py": {"FlatDescent.solve": SETTINGS},
    "tables/linear/glm.py": {"PrivateLogLinkRegressor._solve": SETTINGS, "noise_of_mean": SETTINGS}
    | {"PrivateLogLinkRegressor._describe": RELEASED},
    "tables/linear/metric.py": {"Metric.of": RELEASED, "release_triangle": SETTINGS}
    | {"towards_level": RELEASED},
    "tables/linear/residual_cut.py": {"best_cut": RELEASED, "root_mean_square": RELEASED},
    "tables/linear/robust_gd.py": {"_cubic_mean": "numbers below 1e3, each by itself, then cut"},
    "tables/linear/score_rows.py": {"information_sensitivity": SETTINGS, "Information": RELEASED}
    | {"square_sensitivity": SETTINGS, "_centre_and_spread": RELEASED},
    "tables/linear/simple.py": {"Simple._advice": SETTINGS, "_epsilon": SETTINGS},
    "tables/linear/sufficient.py": {"Statistics.inside": RELEASED},
    "tables/linear/task.py": {"LinearTask.smoothness": SETTINGS, "LinearTask.hoelder": SETTINGS},
    "tables/linear/whitened.py": {"Run.__init__": SETTINGS, "Run._without_chance": RELEASED},
    "tables/losses.py": {"Softmax": SETTINGS},
    "tables/means/averaged.py": {"averaged_mean": SETTINGS, "_error_bound": SETTINGS},
    "tables/means/clipped.py": {"clipped_mean": SETTINGS, "_error_bound": SETTINGS}
    | {"settle_radius": SETTINGS},
    "tables/means/iterative.py": {"iterative_mean": SETTINGS, "_error_bound": SETTINGS},
    "tables/means/tail_cut.py": {"": RELEASED},
    "tables/means/updating.py": {"": RELEASED},
    "tables/means/winsorised.py": {"Cuts": RELEASED, "read": RELEASED},
    "tables/partitions/statistics.py": {"clipped_mean": SETTINGS, "second_moments": SETTINGS},
    "tables/ranges/distribution.py": {"": RELEASED},
    "tables/ranges/plan.py": {"": SETTINGS},
    "tables/transformers.py": {"PrivateScaler._fit_rows": RELEASED},
    "features/private_axes.py": {"PrivateAxes.fit": SETTINGS, "PrivateAxes._sums": SETTINGS}
    | {"PrivateAxes.__call__": EACH},
    "features/private_norm.py": {"PrivateNorm.fit": RELEASED},
    "features/private_whitening.py": {"PrivateWhitening": SETTINGS, "_round": RELEASED},
    "features/public.py": {"oriented_gradients": EACH},
    "features/scattering.py": {"": EACH},
    "metrics/classes.py": {"Accuracy.read": RELEASED, "share_interval": RELEASED}
    | {"ConfusionMatrix.read": RELEASED, "ConfusionMatrix.width": SETTINGS}
    | {"ConfusionMatrix.total": SETTINGS, "ratio": RELEASED},
    "metrics/histograms.py": {"Calibration.read": RELEASED, "Calibration._row_variance": RELEASED}
    | {"Calibration._absolute": RELEASED, "Quantiles.read": RELEASED, "AUC.read": RELEASED}
    | {"Quantiles._quantile": RELEASED},
    "metrics/measuring.py": {"_sensitivity": SETTINGS},
    "metrics/moments.py": {"Moments._at": RELEASED, "R2.functions": RELEASED},
}
"""Why a function, or all functions of a class or file (""), may square what is no private row."""


def squared(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    """Where something is squared or its root is taken, and what."""
    for node in ast.iter_child_nodes(tree):
        kinds = (ast.FunctionDef, ast.ClassDef)
        here = f"{inside}.{node.name}".strip(".") if isinstance(node, kinds) else inside
        call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if call and node.func.attr.rstrip("_") in CALLS:
            owner = node.func.value
            if not (isinstance(owner, ast.Name) and owner.id in SCALAR):
                yield here, ast.unparse(node)
        if isinstance(node, ast.BinOp):
            right = getattr(node.right, "value", None)
            twice = ast.dump(node.left) == ast.dump(node.right)
            if (isinstance(node.op, ast.Pow) and right in (2, 0.5)) or (
                isinstance(node.op, ast.Mult) and twice
            ):
                yield here, ast.unparse(node)
        yield from squared(node, here)


def is_allowed(where: str, allowed: dict[str, str]) -> bool:
    return any(not name or f"{where}.".startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOMS)))
def test_rows_are_squared_in_the_one_arithmetic_only(path):
    allowed = ALLOWED.get(str(path.relative_to(ROOMS)), {})
    found = list(squared(ast.parse(path.read_text())))
    assert [one for one in found if not is_allowed(one[0], allowed)] == []
    names = [name for name in allowed if not any(is_allowed(at, {name: ""}) for at, _ in found)]
    assert names == [], "no longer needed"


def test_the_rule_sees_what_it_forbids():
    source = """
def total(x):
    lengths = np.sqrt(np.einsum("ij,ij->i", x, x)) + np.linalg.norm(x, axis=1) + x ** 2
    return x * x + x.square() + torch.linalg.vector_norm(x) + math.sqrt(2)
"""
    assert len(list(squared(ast.parse(source)))) == 7


def test_no_constant_stands_for_rounding_in_a_room():
    """What rounding may add is `slack`, charged by the prepaid door."""
    for path in FILES:
        text = path.read_text()
        assert "ROUNDING" not in text and "SLACK" not in text, path
