"""The operations of a sequence, as values that print as Python.

Indices are taken modulo what there is, so that an operation stays valid when another is left out.
"""

from typing import NamedTuple

from tests.fuzz.gradients import Gradient
from tests.fuzz.start import Group


class Step(NamedTuple):
    """Give the parameters gradients, in turn, and step."""

    gradients: tuple[Gradient, ...]
    seed: int = 0


class StepAgain(NamedTuple):
    """Step with whatever gradients there are."""


class SetLr(NamedTuple):
    """Change the learning rate of a group."""

    group: int
    lr: float
    tensor: bool = False


class AddGroup(NamedTuple):
    """Add a param group."""

    group: Group
    seed: int = 0


class Duplicate(NamedTuple):
    """Make a copy that must go on bit-identically.

    Attributes:
        how: ``"save"`` (``torch.save`` of state and parameters, a new optimizer), ``"save-late"`` (the same, with the
            parameters loaded after the new optimizer was built), ``"pickle"`` or ``"deepcopy"``.
        swap: whether the copy takes the place of the original.
    """

    how: str
    swap: bool = False


class Reload(NamedTuple):
    """Load the optimizer's own state into itself."""


class Overwrite(NamedTuple):
    """Write to a matrix, as a user would.

    Attributes:
        param: which parameter.
        matrix: which of its matrices.
        how: ``"scale"``, ``"orthonormal"``, ``"zero"`` or ``"deficient"`` (two equal rows; of one row, zero).
        factor: for ``"scale"``.
        seed: for ``"orthonormal"``.
    """

    param: int
    matrix: int
    how: str
    factor: float = 1.0
    seed: int = 0


class ToggleGrad(NamedTuple):
    """Flip ``requires_grad`` of a parameter."""

    param: int


class ZeroGrad(NamedTuple):
    """Call ``zero_grad``."""

    set_to_none: bool = True


class Recover(NamedTuple):
    """Take moderate steps until all matrices that were scaled are on the manifold again."""

    steps: int = 150
    seed: int = 0


Operation = Step | StepAgain | SetLr | AddGroup | Duplicate | Reload | Overwrite | ToggleGrad | ZeroGrad | Recover
