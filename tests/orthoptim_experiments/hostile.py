"""Results files made to do harm, and what `orthoptim report` makes of them.

    python -m tests.orthoptim_experiments.hostile --count 200 --seed 0

prints how many files were tried, how many defects were told of, and how many times the report broke its promises: no
traceback, no file outside its folder, no input changed, no name of the data taken for markup, one line for each defect.
"""

import argparse
import contextlib
import html.parser
import json
import random
import re
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from unittest import mock

from typer.testing import CliRunner

from orthoptim_experiments.cli import commands
from orthoptim_experiments.harness.record_writer import RunFile
from orthoptim_experiments.harness.records import ResultsError
from orthoptim_experiments.problems import EXPERIMENTS
from orthoptim_experiments.report import figures, page
from tests.orthoptim_experiments.synthetic import run_lines

TAG = "x-hostile"
MARKUP = f"</script><{TAG} onload=alert(1)>'\"><img src=x onerror=alert(1)>&amp;{{{{7*7}}}}\u2028"

NAMES = [
    "../escaped", "../../../escaped", "/escaped", "ROOT/escaped", "..", ".", "", "a/b", "a\\b", "C:\\escaped",
    "~/escaped", "a\0b", "a\nb", "a\x1b[31m", "\ud800", "CON", "nul", "com1.txt", "-rf", ".hidden", "trailing.",
    "trailing ", " ", "n" * 150, "n" * 5000, "é" * 150, "漢" * 150, "PCA", "pca", MARKUP, "$\\frac{1}{$", "$x$",
    "_hidden", "%s%n", "{0}", "__proto__", "constructor", "\u202egnp.exe", "🤖", "a\u0301", "ﬁ", "'; drop table",
    "*?[a]", "|", "<b>", "&lt;",
]  # fmt: skip
"""For methods, experiments, runs, columns, pictures and settings; ROOT is where the files are."""

VALUES = [
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, -1e308, 1e-308, 5e-324, 10**400, -(10**400), 10**4299, 2**53, 2**63,
    float("inf"), float("-inf"), float("nan"), "", "1e-6", "text", [], {}, [1], ["POGO"], {"a": 1},
    [[[[[[[[[[1]]]]]]]]]], {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {}}}}}}}}}, ["x"] * 5000, MARKUP,
    "\ud800", "t" * 20_000, "\0", {MARKUP: MARKUP}, {"": 1}, {"n" * 1000: 1}, *NAMES[:4],
]  # fmt: skip
"""For any field."""

GARBAGE = [
    b"", b"\n", b"\n\n\n", b"{", b"}", b"null", b"[]", b"{}", b'"text"', b"1", b"NaN", b"Infinity", b"\0" * 100,
    bytes(range(256)), b"\xff\xfe\xfa", b"\xed\xa0\x80", b"[" * 100_000, b'{"a":' * 100_000, b"[" * 500 + b"]" * 500,
    b'{"kind": "run"}', b'{"kind": ["run"]}', b'{"kind": 1e999}', b'{"kind": "run", "kind": "run"}',
    b'{"kind": "record", "step": ' + b"9" * 10_000 + b"}", b"\xef\xbb\xbf{}", b"%PDF-1.4", b"PK\x03\x04",
    b"\r", b"{}\r",
]  # fmt: skip
"""For a line, or for all of a file."""


def small_run(chance):
    """The lines of a sound run, of a known experiment or of another."""
    name = chance.choice([*EXPERIMENTS, "pca", "circuits", "mine"])
    experiment = EXPERIMENTS.get(name)
    methods = experiment.default_methods if experiment else ("POGO", "mine")
    lines = list(run_lines(name, chance.sample(methods, min(len(methods), 3)), seeds=chance.randint(1, 3), steps=5))
    lines[0]["config"] |= {"tolerance": 1e-6, "units": 4, "dataset": "mnist", "device": "cpu"}
    for line in lines:
        if line["kind"] == "record":
            line |= {"bpd": 1.3, "test_bpd": 1.3, "log_z": 1e-9, "abs_log_z": 1e-9, "epoch": 1.0, "accuracy": 0.9}
    return lines


def encode(lines):
    """As JSON, lone surrogates, infinities and whatever else Python's writer lets pass."""
    return b"\n".join(json.dumps(line).encode() for line in lines) + b"\n"


def attacks(root):
    """Files written by hand, by name."""
    sound = small_run(random.Random(0))
    header, trial, record = sound[:3]
    for at, garbage in enumerate(GARBAGE):
        yield f"only garbage {at}", garbage
        yield f"garbage {at} in the middle", encode(sound[:3]) + garbage + b"\n" + encode(sound[3:])
        yield f"garbage {at} at the end", encode(sound) + garbage
    for field in ("experiment", "id"):
        for at, name in enumerate(NAMES):
            yield f"{field} {at}", encode([{**header, field: name.replace("ROOT", str(root))}, *sound[1:]])
    for at, name in enumerate(NAMES):
        other = name.replace("ROOT", str(root))
        yield f"method {at}", encode([{**line, "method": other} if "method" in line else line for line in sound])
        yield (
            f"column {at}",
            encode(
                [
                    {**header, "experiment": "mine"},
                    *({**line, other: 1} if "step" in line else line for line in sound[1:]),
                ]
            ),
        )
    for at, value in enumerate(VALUES):
        yield f"tolerance {at}", encode([{**header, "config": {**header["config"], "tolerance": value}}, *sound[1:]])
        yield f"size {at}", encode([{**header, "config": {**header["config"], "p": value, "dtype": value}}, *sound[1:]])
        yield (
            f"units {at}",
            encode([{**header, "experiment": "circuits", "config": {**header["config"], "units": value}}, *sound[1:]]),
        )
        yield f"value {at}", encode([header, trial, record, {**record, "step": 9, "gap": value, "distance": value}])
        picture = {"kind": "picture", "method": trial["method"], "seed": 0, "name": value, "png": value}
        yield f"picture {at}", encode([{**header, "experiment": "circuits"}, trial, record, picture, *sound[3:]])
    pairs = [{**record, "step": at, "gap": gap, "loss": gap} for at, gap in enumerate((1e308, 1e-308, 5e-324), start=1)]
    ends = [{"kind": "end", "method": trial["method"], "seed": 0, "status": "diverged"}]
    yield "far apart", encode([header, trial, *pairs])
    yield "far apart and lost", encode([header, trial, *pairs, *ends])
    yield "far apart, unknown", encode([{**header, "experiment": "mine"}, trial, *pairs])
    signs = [{**record, "step": at, "loss": value} for at, value in enumerate((1e308, -1e308, 1e308), start=1)]
    trials = [{**line, "seed": seed} for seed in range(3) for line in (trial, *signs)]
    yield "sums beyond all numbers", encode([{**header, "experiment": "mine"}, *trials])
    yield "UTF-16", encode(sound).decode().encode("utf-16")
    yield "UTF-32", encode(sound).decode().encode("utf-32")
    yield "carriage returns", encode(sound).replace(b"\n", b"\r\n")
    yield "carriage returns alone", encode(sound).replace(b"\n", b"\r")
    yield "no line feed at the end", encode(sound)[:-1]
    yield "only the first line, without a line feed", encode([header])[:-1]
    yield "no line feed at all", encode(sound).replace(b"\n", b" ")
    yield "two runs in one", encode(sound) * 2
    yield "backwards", encode(reversed(sound))
    yield "a long line", encode(sound[:3]) + b'{"kind": "' + b"x" * (9 << 20) + b'"}\n' + encode(sound[3:])
    yield "a long torn line", encode(sound) + b'{"kind": "' + b"x" * (9 << 20)
    yield "many methods", encode([header, *({**trial, "method": f"m{at}"} for at in range(300))])
    columns = {f"c{at}": 1.0 for at in range(100)}
    yield "many columns", encode([{**header, "experiment": "mine"}, trial, {**record, **columns}])
    yield "many defects", encode([header, *[record] * 300])


def mutated(chance, root):
    """A sound run with a few things changed."""
    lines = small_run(chance)
    for _ in range(chance.randint(1, 4)):
        at = 0 if chance.random() < 0.3 else chance.randrange(len(lines))
        line = lines[at] = dict(lines[at])
        field = chance.choice(list(line) or ["kind"])
        deed = chance.randrange(8)
        if deed < 3:
            line[field] = chance.choice(VALUES)
        elif deed < 5:
            line[field] = chance.choice(NAMES).replace("ROOT", str(root))
        elif deed == 5:
            line.pop(field, None)
        elif deed == 6:
            line[chance.choice(NAMES)] = chance.choice(VALUES)
        else:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
    data = bytearray(encode(lines))
    if chance.random() < 0.4:
        for _ in range(chance.randint(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.3:
        del data[chance.randrange(len(data)) :]
    return bytes(data)


def hostile_files(count, seed, root):
    """So many files as names and bytes: those written by hand in an order by chance, then others."""
    chance = random.Random(seed)
    by_hand = list(attacks(root))
    chance.shuffle(by_hand)
    yield from by_hand[: count // 2]
    for at in range(count - min(count // 2, len(by_hand))):
        yield f"mutation {at}", mutated(chance, root)


class _Tags(html.parser.HTMLParser):
    """Counts the elements of a page, and the attributes that run code."""

    def __init__(self):
        super().__init__()
        self.tags, self.handlers = Counter(), []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def page_violations(text):
    """What is wrong with a page."""
    tags = _Tags()
    tags.feed(text)
    if tags.tags[TAG] or f"<{TAG}" in text or "49" in re.findall(r"&amp;amp;(\d+)", text):
        yield "a name is taken for markup"
    if tags.handlers or tags.tags["script"] != 3:
        yield "a script is not the page's own"
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    if data is None or not _is_json(data[1]):
        yield "the data of the page cannot be read"


def _is_json(text):
    """Whether a browser can read it: Python alone knows NaN."""
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _refuse(constant):
    raise ValueError(constant)


def tree(root):
    """All there is below a folder, with the bytes of files."""
    return {
        path: b"a link" if path.is_symlink() else path.read_bytes() if path.is_file() else b"a folder"
        for path in sorted(root.rglob("*"))
    }


class Trial:
    """One report after the other on hostile files, and what came of them.

    Attributes:
        files: how many were tried.
        pages: how many of them had something to show.
        defects: how many lines told of defects.
        violations: what the report promised not to do, in words.
    """

    def __init__(self, root):
        self.root = root
        self.inputs, self.out = root / "a" / "results", root / "a" / "b" / "out"
        self.inputs.mkdir(parents=True)
        self.out.mkdir(parents=True)
        self.files = self.pages = self.defects = 0
        self.violations = []

    def attack(self, name, data):
        """Report on one file."""
        self.files += 1
        path = self.inputs / "run.jsonl"
        path.write_bytes(data)
        before = tree(self.root)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = CliRunner().invoke(commands.app, ["report", str(path), "--out", str(self.out / "report.html")])
        self.violations += [f"{name}: {what}" for what in self._report_violations(result, before)]
        self.violations += [f"{name}: warns: {each.message}" for each in warned]
        self.violations += [f"{name}: {what}" for what in self._writer_violations(path, data)]
        self._clean()

    def _report_violations(self, result, before):
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            yield f"a traceback: {result.exception!r}"
            return
        told = result.stderr.splitlines()
        self.defects += len(told)
        if not all(line.startswith("orthoptim: ") and line.isprintable() for line in told):
            yield f"not one line for each defect: {told}"
        after = tree(self.root)
        if {path: data for path, data in after.items() if path in before} != before:
            yield "an earlier file is changed"
        new = set(after) - set(before)
        if result.exit_code == 2:
            if new or not told:
                yield f"refused, and yet {len(told)} lines and {len(new)} files"
        elif result.exit_code == 0:
            self.pages += 1
            figures = self.out / "figures"
            for path in new - {self.out / "report.html", figures}:
                if path.parent != figures or path.suffix not in (".png", ".pdf", ".csv") or path.name.startswith("."):
                    yield f"a file at {path}"
            yield from page_violations((self.out / "report.html").read_text(encoding="utf-8"))
        else:
            yield f"exit code {result.exit_code}"

    def _writer_violations(self, path, data):
        """Whatever a writer does to the file, no byte of it is lost."""
        header = {"id": "0123456789", "experiment": "pca", "config": {}, "environment": {}, "started": "now"}
        with contextlib.suppress(ResultsError):
            RunFile(path, header).close()
        aside = path.with_name(f"{path.name}.torn")
        whole, torn = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
        kept = path.read_bytes()
        if not kept.startswith(data) and not (
            kept.startswith(whole) and aside.exists() and aside.read_bytes() == torn + b"\n"
        ):
            yield "a writer has lost bytes"

    def _clean(self):
        for path in sorted(self.root.rglob("*"), reverse=True):
            if path not in (self.inputs, self.out, self.root / "a", self.root / "a" / "b"):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@contextlib.contextmanager
def cheap_rendering(drawn):
    """Within it, pages lack plotly, which no data reach; figures are coarse, and built but not drawn unless `drawn`."""
    look = {**figures._LOOK, "savefig.dpi": 20}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(page, "get_plotlyjs", return_value="//"))
        stack.enter_context(mock.patch.object(figures, "_LOOK", look))
        if not drawn:
            stack.enter_context(mock.patch.object(figures.Figure, "savefig"))
        yield


def attack(count, seed, root, draw_every):
    """Report on so many hostile files, with the figures of every so many drawn."""
    trial = Trial(Path(root))
    for at, (name, data) in enumerate(hostile_files(count, seed, root)):
        with cheap_rendering(drawn=at % draw_every == 0):
            trial.attack(name, data)
    return trial


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="files")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of files")
    parser.add_argument("--draw-every", type=int, default=10, help="of the figures: all are built, every tenth drawn")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trial = attack(arguments.count, arguments.seed, folder, arguments.draw_every)
    for violation in trial.violations:
        print(f"violation: {violation}")
    print(
        f"{trial.files} files tried, {trial.pages} with something to show, "
        f"{trial.defects} defects reported, {len(trial.violations)} violations"
    )
    return bool(trial.violations)


if __name__ == "__main__":
    raise SystemExit(main())
