"""The names that options take, as types: a type checker finds a misspelt one.

They stand below everything else, so that any module may import them. ``ViewName`` and ``Side`` are in
:mod:`orthoptim.views`.
"""

from typing import Literal, get_args

LandingPolicy = Literal["safe", "strict", "half", "root", "argmin", "newton-schulz"]
"""How :class:`orthoptim.POGO` lands, see :mod:`orthoptim.stiefel.policies`."""

MatmulPrecision = Literal["ieee", "mixed"]
"""In which arithmetic the products of :class:`orthoptim.POGO` run, see :mod:`orthoptim.stiefel.policies`."""

Metric = Literal["euclidean", "canonical"]
"""Which gradient :class:`orthoptim.RGD` follows."""

Retraction = Literal["qr", "polar", "cholesky", "cayley", "cayley-iterative"]
"""How :class:`orthoptim.RGD` returns to the manifold."""

Sampling = Literal["orthogonal", "permutation"]
"""Which subspaces :class:`orthoptim.RSDM` draws."""

MsignDtype = Literal["bfloat16", "full"]
"""What the matrix sign of :class:`orthoptim.StiefelMuon` is computed in."""

Init = Literal["project", "random", "hadamard", "random-hadamard"]
"""Which orthonormal matrices :func:`orthoptim.orthogonalize_` writes."""

MSIGN_DTYPES: tuple[str, ...] = get_args(MsignDtype)
MATMUL_PRECISIONS: tuple[str, ...] = get_args(MatmulPrecision)
SAMPLINGS: tuple[str, ...] = get_args(Sampling)
INITS: tuple[str, ...] = get_args(Init)
