"""Figures are files that others can read, and show what they should."""

import itertools
import re
from dataclasses import replace

import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest

from orthoptim_experiments.harness import record_reader
from orthoptim_experiments.harness.methods import STANDARD
from orthoptim_experiments.harness.panels import PAPER, Panel
from orthoptim_experiments.harness.records import Trial
from orthoptim_experiments.report.figures import draw, save_figure
from orthoptim_experiments.report.styles import style_of, styles_of
from tests.orthoptim_experiments.synthetic import write_run


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    statuses = {("SLPG", 1): "diverged", ("RGD", 0): None, ("Landing", 2): "failed"}
    path = write_run(tmp_path_factory.mktemp("runs") / "pca-0.jsonl", seeds=3, steps=400, statuses=statuses)
    return record_reader.load(path).trials


def test_png_and_pdf_are_valid_and_sized_as_in_the_paper(trials, tmp_path):
    png, pdf = save_figure(tmp_path / "new" / "pca-0.5", [(trials, panel) for panel in PAPER])
    assert (png.name, pdf.name) == ("pca-0.5.png", "pca-0.5.pdf")
    image = matplotlib.image.imread(png)
    assert image.shape[1] == pytest.approx(6.75 * 300, abs=1)
    assert np.ptp(image[..., :3]) > 0.9  # it is not blank
    data = pdf.read_bytes()
    assert data.startswith(b"%PDF-")
    assert data.rstrip().endswith(b"%%EOF")
    assert not re.search(rb"/Subtype\s*/Type3", data)  # journals refuse such fonts
    assert sorted(path.name for path in png.parent.iterdir()) == ["pca-0.5.pdf", "pca-0.5.png"]


def test_the_same_data_give_the_same_bytes(trials, tmp_path):
    panels = [(trials, Panel("time", "gap"))]
    one, other = save_figure(tmp_path / "one", panels), save_figure(tmp_path / "other", panels)
    for first, second in zip(one, other, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_axes_labels_scales_and_one_legend(trials):
    figure = draw(
        [(trials, Panel("time", "projected_gap")), (trials, Panel("step", "loss", log_x=True, title="the loss"))]
    )
    left, right = figure.axes
    assert (left.get_xlabel(), left.get_ylabel(), left.get_xscale(), left.get_yscale()) == (
        "wall time (s)", "optimality gap", "linear", "log",
    )  # fmt: skip
    assert (right.get_xlabel(), right.get_ylabel(), right.get_xscale(), right.get_yscale()) == (
        "iteration", "loss", "log", "linear",
    )  # fmt: skip
    assert right.get_title() == "the loss"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["POGO", "RGD", "RSDM", "Landing", "LandingPC", "SLPG"]


def test_a_method_has_one_colour_in_all_panels(trials):
    left, right = draw([(trials, Panel("time", "gap")), (trials, Panel("step", "distance"))]).axes
    colours = [{line.get_color() for line in axes.lines} for axes in (left, right)]
    assert colours[0] == colours[1] == {style_of(trial.method).colour for trial in trials}


def test_bands_lost_trials_and_shade(trials):
    (axes,) = draw([(trials, Panel("time", "gap"))]).axes
    banded = {"POGO", "RGD", "RSDM", "LandingPC"}  # of the others' three trials one was lost
    assert len(axes.collections) == len(banded)
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert {line.get_color() for line in crosses} == {style_of("Landing").colour, style_of("SLPG").colour}
    (shaded,) = draw([(trials, replace(PAPER[2], shade=1e-5))]).axes
    assert len(shaded.patches) == 1


@pytest.mark.parametrize("log", [False, True])
def test_a_trial_that_diverges_ends_in_a_cross_where_it_leaves_the_panel(log):
    def make(method, gaps, status):
        return Trial(method, 0, status=status, records={"step": [0, 1, 2], "time": [0, 1, 2], "gap": gaps})

    trials = [make("POGO", [1, 0.1, 0.01], "budget"), make("RGD", [1, 0.1, 0.02], "budget")]
    before = draw([(trials, Panel("step", "gap", log_y=log))]).axes[0].get_ylim()
    lost = replace(make("RGD", [1, 1e20, 1e30], "diverged"), seed=1)
    (axes,) = draw([([*trials, lost], Panel("step", "gap", log_y=log))]).axes
    assert axes.get_ylim() == before
    (cross,) = (line for line in axes.lines if line.get_marker() == "x")
    assert (cross.get_xdata()[0], cross.get_ydata()[0]) == (1, before[1])


def test_bars_of_last_values(trials):
    (axes,) = draw([(trials, Panel("method", "time"))]).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "POGO",
        "RGD",
        "RSDM",
        "Landing",
        "LandingPC",
        "SLPG",
    ]
    ends = [trial.records["time"][-1] for trial in trials if trial.method == "POGO"]
    assert axes.patches[0].get_height() == pytest.approx(np.mean(ends))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "gaps", [(1e308, 1e-308, 5e-324), (1e308, -1e308, 1.0), (1e308, 1e308, 1e308), (0.0, 0.0, 0.0)]
)
def test_numbers_at_the_ends_of_the_doubles_are_drawn(tmp_path, gaps, log, recwarn):
    records = {"step": [0, 1, 2], "time": [0, 1, 2], "gap": list(gaps)}
    trials = [
        Trial("RGD", seed, status=status, records=records) for seed in range(3) for status in ("budget", "failed")
    ]
    panels = [(trials, Panel("step", "gap", log_y=log, shade=1e-5)), (trials, Panel("method", "gap", log_y=log))]
    assert len(save_figure(tmp_path / "figure", panels)) == 2
    assert [str(each.message) for each in recwarn] == []


def test_names_are_labels_and_no_formulas(tmp_path, recwarn):
    names = ["$\\frac{1}{$", "$x$", "_hidden", "漢字", "n" * 200, "<b>"]
    trials = [
        Trial(name, 0, status="budget", records={"step": [0, 1], "time": [0, 1], "$\\gap": [1.0, 0.5]})
        for name in names
    ]
    panels = [(trials, Panel("time", "$\\gap")), (trials, Panel("method", "$\\gap"))]
    assert len(save_figure(tmp_path / "figure", panels)) == 2
    assert [str(each.message) for each in recwarn] == []
    (legend,) = draw(panels).legends
    shown = [text.get_text().strip().replace("\\$", "$") for text in legend.get_texts()]
    assert shown == [*names[:4], "n" * 39 + "…", "<b>"]


def test_many_panels_make_rows(trials):
    figure = draw([(trials, Panel("time", "gap"))] * 5)
    assert len(figure.axes) == 5
    assert len({round(axes.get_subplotspec().rowspan.start) for axes in figure.axes}) == 2


def test_in_grey_lines_of_the_methods_differ():
    looks = [(style_of(name).dash, style_of(name).marker) for name in STANDARD]
    assert len(set(looks)) == len(looks)


def test_on_a_dark_ground_every_colour_stands_out_and_they_differ():
    def linear(part):
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    def contrast(colour, ground):
        lights = []
        for each in (colour, ground):
            red, green, blue = (linear(int(each[at : at + 2], 16) / 255) for at in (1, 3, 5))
            lights.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
        return (max(lights) + 0.05) / (min(lights) + 0.05)

    colours = [style_of(name).colour_on_dark for name in STANDARD]
    assert all(contrast(colour, "#171715") >= 3 for colour in colours)
    assert all(one != other for one, other in itertools.combinations(colours, 2))


def test_unknown_methods_have_a_style_and_keep_it():
    assert style_of("my method") == style_of("my method")
    assert style_of("my method").label == "my method"


def test_contenders_that_set_options_have_the_colour_of_their_method_or_one_of_their_own():
    """SGDG and RGD-cayley at lr 5 shared a colour, and POGO-SGD at 0.05 with StiefelMuon at 0.0005."""
    names = ["SGDG:lr=5", "RGD-cayley:lr=5", "POGO:lr=1.5", "POGO", "POGO-SGD:lr=0.05", "StiefelMuon:lr=0.0005"]
    styles = styles_of(names)
    assert [*styles] == names
    assert len({style.colour for style in styles.values()}) == len(names)
    for name in ("POGO", "RGD-cayley:lr=5", "StiefelMuon:lr=0.0005"):
        assert styles[name].colour == style_of(name.partition(":")[0]).colour


def test_contenders_are_told_apart_when_colours_are_used_up():
    styles = styles_of(f"POGO:lr={rate}" for rate in range(1, 61)).values()
    assert len({style.colour for style in list(styles)[:11]}) == 11
    assert len({(style.colour, style.dash, style.marker) for style in styles}) == 60


def test_lines_bars_and_legend_agree_about_colours(trials):
    names = iter(f"POGO:lr={rate}" for rate in range(100))
    renamed = [replace(trial, method=next(names)) for trial in trials[:3]]
    curves, bars = draw([(renamed, Panel("step", "gap")), (renamed, Panel("method", "gap"))]).axes
    colours = [matplotlib.colors.to_hex(bar.get_facecolor()).upper() for bar in bars.patches]
    assert len(set(colours)) == len(colours) == 3
    assert {line.get_color() for line in curves.get_lines()} == set(colours)
