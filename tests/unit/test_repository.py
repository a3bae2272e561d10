"""What holds for the repository as a whole: imports, versions, names, shipped files."""

import ast
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import bandit
import mrl
import paper_figures
from bandit.probes import PROBES
from mrl import config
from mrl.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = (bandit, mrl, paper_figures)
TRAINING_ONLY = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "reasoning_gym",
    "datasets",
    "math_verify",
    "peft",
    "ray",
    "vllm",
)
PROBE_BLIND = ("train", "member", "bookkeeping", "loss", "batch", "update")
CLUSTERS = sorted((ROOT / "mrl" / "configs").glob("cluster-*.yaml"))
CONFIGS = sorted({*(ROOT / "mrl" / "configs").rglob("*.yaml")} - {*CLUSTERS})
FOLDERS = ("bandit", "mrl", "paper_figures", "notebooks", "docs", "tests", ".ci")
BINARY = {".png", ".pyc", ".safetensors", ".gz"}
# A file below the top of a Unix machine, or a Windows drive; not part of an address or a path.
MACHINE_PATH = re.compile(r"(?<![\w.:/~-])(?:/(?:work|root|home|opt|Users|mnt|srv)/\w|[A-Z]:\\\w)")


def source(module: str) -> str:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def files() -> Iterator[Path]:
    """Every file of the repository, what tools leave behind aside."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.name != ".git")
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            caches = {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)
            if path.is_file() and not caches and path.suffix not in BINARY:
                yield path


HIDE = """
import sys
from importlib.machinery import PathFinder

class WithoutTraining(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in {modules!r}
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path = [WithoutTraining if f is PathFinder else f for f in sys.meta_path]
sys.path.insert(0, {root!r})
"""


def in_base_install(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that does not find what only training needs."""
    hide = HIDE.format(modules=TRAINING_ONLY, root=str(ROOT))
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", hide + code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def command(*arguments: str) -> str:
    return f"from mrl.cli import main\nmain({list(arguments)!r})"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_packages_are_those_of_this_repository(package):
    # A linter of the same name as `bandit` would shadow it.
    assert Path(package.__file__).resolve().is_relative_to(ROOT)


def test_the_base_install_has_no_torch(tmp_path):
    run = in_base_install("import torch", tmp_path)
    assert run.returncode != 0
    assert "ModuleNotFoundError" in run.stderr


def test_imports_in_the_base_install(tmp_path):
    modules = "bandit, bandit.plots, mrl, mrl.config, mrl.tokens.alignment, mrl.exchange.records"
    modules += ", mrl.allocation, mrl.allocation.allocating"
    run = in_base_install(f"import {modules}", tmp_path)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["study", "--help"], ["allocate", "--help"], ["doctor"]]
)
def test_commands_in_the_base_install(arguments, tmp_path):
    run = in_base_install(command(*arguments), tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def test_training_without_torch_says_what_to_install(tmp_path):
    run = in_base_install(command("train", str(CONFIGS[0]), "--unvalidated"), tmp_path)
    assert run.returncode == 2
    assert "mutual-rl[train]" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_configurations_parse_and_survive_a_round_trip(path):
    loaded = config.load_any(path)
    assert config.parse_any(yaml.safe_load(config.dump(loaded))) == loaded


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.name)
def test_shipped_inventories_parse(path):
    assert config.load_inventory(path).nodes


def test_configurations_are_shipped():
    assert CONFIGS
    assert CLUSTERS


def test_a_shipped_configuration_is_read_by_name_unless_a_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {path.stem for path in (*CONFIGS, *CLUSTERS)} == set(config.shipped_configs())
    assert config.load("arithmetic-pair").name == "arithmetic-pair"
    Path("arithmetic-pair").write_text("name: mine", encoding="utf-8")
    assert config.read("arithmetic-pair") == {"name": "mine"}
    with pytest.raises(InputError, match=r"expected a YAML file or one of \['arithmetic-pair'"):
        config.read("arithmetic-pear")


@pytest.mark.parametrize("module", PROBE_BLIND)
def test_the_trainer_names_no_probe(module):
    names, strings = set(), set()
    for node in ast.walk(ast.parse(source(f"mrl.{module}"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                names.add(name)
            case ast.Constant(value=str(text)):
                strings.add(text)
    assert not names & {probe.__name__ for probe in PROBES.values()}
    assert not strings & set(PROBES)


def test_all_folders_of_tests_are_run_but_the_one_with_an_environment_of_its_own():
    paths = {path for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    named = {ROOT / path for path in PROJECT["tool"]["pytest"]["ini_options"]["testpaths"]}
    assert paths - named == {ROOT / "tests" / "with_vllm"}


def test_the_main_loop_fits_on_a_page():
    assert len(source("mrl.train").splitlines()) <= 150


def test_the_contract_on_probes_lists_all_other_modules_of_bandit():
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (probes,) = (c for c in contracts if c.get("source_modules") == ["bandit.probes"])
    others = {f"bandit.{module.name}" for module in pkgutil.iter_modules(bandit.__path__)}
    assert set(probes["forbidden_modules"]) == others - {"bandit.probes"}


def test_one_version_everywhere():
    version = PROJECT["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[?(\d[^\]\s]*)", changes, flags=re.MULTILINE)
    assert citation["version"] == version
    assert newest is not None
    assert newest[1] == version
    assert metadata.version(PROJECT["project"]["name"]) == version, "run: make setup"


def test_no_file_names_a_path_of_one_machine():
    found = {
        f"{path.relative_to(ROOT)}: {line.strip()[:80]}"
        for path in files()
        for line in path.read_text(encoding="utf-8").splitlines()
        if MACHINE_PATH.search(line)
    }
    assert not found


def test_no_test_folder_shadows_the_package():
    assert not (ROOT / "tests" / "bandit").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_test_files_have_names_of_their_own():
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    assert sorted(names) == sorted(set(names))


def test_every_module_says_what_it_is():
    silent = [
        str(path.relative_to(ROOT))
        for package in ("bandit", "mrl", "paper_figures")
        for path in (ROOT / package).rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent


def test_notebooks_are_stored_without_outputs():
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert notebooks
    for path in notebooks:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs"), path.name
            assert cell.get("execution_count") is None, path.name


def test_constraints_allow_what_is_required():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for name, version in (line.split("==") for line in lines if line and line[0] != "#")
    }
    project = PROJECT["project"]
    wanted = list(project["dependencies"])
    for extra in ("train", "loggers", "dev", "notebooks"):
        wanted += project["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        pin = pins[re.sub(r"[-_.]+", "-", requirement.name).lower()]
        assert requirement.specifier.contains(pin), f"{requirement} against {pin}"


def test_the_readmes_first_snippet_runs(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (snippet,) = (block for block in blocks if "plots.plane(frame)" in block)
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "README.md", "exec"), {})  # noqa: S102
    assert (tmp_path / "plane.svg").stat().st_size > 0
    assert "more own rollouts in support gain" in capsys.readouterr().out
