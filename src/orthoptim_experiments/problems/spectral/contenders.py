"""The contender that only this experiment knows: registered when it is imported."""

import orthoptim as oo
from orthoptim_experiments.harness.methods import METHODS, Method

_POGO = Method("POGO-VAdam", "POGO with VAdam", oo.POGO, "#D55E00", "dashdot", fixed={"base": "VAdam"})
METHODS |= {_POGO.name: _POGO}
