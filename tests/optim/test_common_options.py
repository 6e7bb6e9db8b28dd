"""The options that all methods share stand in each signature and docstring, and are checked like the others."""

import inspect
from typing import Unpack

import pytest

import orthoptim as oo
from orthoptim.optim.common_options import DEFAULTS, CommonOptions
from tests.conformance.methods import point

METHODS = [oo.POGO, oo.RGD, oo.RSDM, oo.Landing, oo.LandingPC, oo.SLPG, oo.StiefelMuon]


@pytest.mark.parametrize("method", METHODS)
def test_a_signature_shows_the_common_options(method):
    for parameters in (inspect.signature(method).parameters, inspect.signature(method.__init__).parameters):
        assert {name: parameters[name].default for name in DEFAULTS} == DEFAULTS
        assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in DEFAULTS)
        assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    assert next(iter(inspect.signature(method).parameters)) == "params"


@pytest.mark.parametrize("method", METHODS)
def test_a_docstring_documents_every_argument(method):
    described = inspect.getdoc(method)
    for name in inspect.signature(method).parameters:
        assert f"\n    {name}: " in described
    assert "{params}" not in described
    assert "{common}" not in described


def test_options_that_are_not_given_take_their_defaults():
    group = oo.RGD([point(4, 6)], 0.1, maximize=True).param_groups[0]
    assert {name: group[name] for name in DEFAULTS} == {**DEFAULTS, "maximize": True}


@pytest.mark.parametrize(("given", "meant"), [("sides", "side"), ("maximise", "maximize"), ("compiled", "compile")])
def test_a_misspelt_common_option_is_refused_with_what_was_meant(given, meant):
    with pytest.raises(TypeError, match=f"RGD got an unexpected keyword argument '{given}'; did you mean '{meant}'"):
        oo.RGD([point(4, 6)], 0.1, **{given: True})


@pytest.mark.parametrize("annotation", [Unpack[CommonOptions], "Unpack[CommonOptions]"])
def test_a_method_of_ones_own_shows_them_too_and_inherits_its_documentation(annotation):
    def init(self, params, lr, **common):
        oo.POGO.__init__(self, params, lr, landing="strict", **common)

    init.__annotations__["common"] = annotation
    strict = type("Strict", (oo.POGO,), {"__init__": init})
    assert list(inspect.signature(strict).parameters) == ["params", "lr", *DEFAULTS]
    assert inspect.getdoc(strict) == inspect.getdoc(oo.POGO)
    with pytest.raises(TypeError, match="did you mean 'side'"):
        strict([point(4, 6)], 0.1, sides="rows")
    assert strict([point(4, 6)], 0.1, side="rows").param_groups[0]["side"] == "rows"
