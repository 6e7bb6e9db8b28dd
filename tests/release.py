"""What is in the wheel and the source distribution: ``python -m tests.release dist``."""

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = {
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "constraints.txt",
    "src/orthoptim/__init__.py",
    "tests/reference.py",
    "docs/conf.py",
    "examples/quickstart.py",
}


def check_wheel(path: Path) -> None:
    """Every module of both packages, the type marker, the data, the licence; nothing else."""
    names = set(_wheel_names(path))
    wanted = {
        file.relative_to(ROOT / "src").as_posix()
        for package in ("orthoptim", "orthoptim_experiments")
        for file in (ROOT / "src" / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    missing = sorted(wanted - names)
    strangers = sorted(name for name in names - wanted if ".dist-info/" not in name)
    assert not missing, f"{path.name} lacks {missing}"
    assert not strangers, f"{path.name} holds {strangers}"
    assert "orthoptim/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names), f"{path.name} has no licence"


def _wheel_names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def check_sdist(path: Path) -> None:
    """What is needed to build, to test and to read; no results, environments or caches."""
    top = path.name.removesuffix(".tar.gz")
    with tarfile.open(path) as archive:
        members = archive.getnames()
    names = {name.removeprefix(f"{top}/") for name in members}
    for wanted in NEEDED:
        assert wanted in names, f"{path.name} lacks {wanted}"
    for name in names:
        assert not name.startswith((".venv", "results/", "docs/_build", "docs/_figures", "dist/")), (
            f"{path.name}: {name}"
        )
        assert "__pycache__" not in name, f"{path.name}: {name}"
    assert path.stat().st_size < 5e6, f"{path.name} has {path.stat().st_size} bytes"


def main() -> None:
    """Check both files of a folder."""
    folder = Path(sys.argv[1])
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    print(f"{wheel.name} and {sdist.name} hold what they should")


if __name__ == "__main__":
    main()
