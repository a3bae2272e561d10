"""Every notebook runs from top to bottom, at the reduced size that its metadata names."""

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# The one notebook that is about writing a class.
OWN_RULE = "own_rule"
EXPECTED_ERROR = "raises-exception"


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def reduced(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    sizes: dict[str, Any] = notebook.metadata["mutual_rl"]["reduced"]
    return sizes


def parameters_cell(notebook: nbformat.NotebookNode) -> int:
    (index,) = (
        i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])
    )
    return index


def draws(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "code" and ("plots." in cell.source or ".plot(" in cell.source)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_and_draws(path, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = read(path)
    sizes = "\n".join(f"{name} = {value!r}" for name, value in reduced(notebook).items())
    notebook.cells.insert(parameters_cell(notebook) + 1, nbformat.v4.new_code_cell(sizes))
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert not [out for out in outputs if out.output_type == "stream" and out.name == "stderr"]
    drawing = [cell for cell in notebook.cells if draws(cell)]
    assert any("plots." in cell.source for cell in drawing)
    for cell in drawing:
        assert any("image/png" in out.get("data", {}) for out in cell.outputs), cell.id
    for cell in notebook.cells:
        if EXPECTED_ERROR in cell.metadata.get("tags", []):
            (error,) = (out for out in cell.outputs if out.output_type == "error")
            assert error.ename == "AssertionError", cell.id


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_reduced_is_what_the_notebook_lets_one_set(path):
    notebook = read(path)
    parameters = ast.parse(notebook.cells[parameters_cell(notebook)].source)
    named = [node for node in ast.walk(parameters) if isinstance(node, ast.Name)]
    names = {node.id for node in named if isinstance(node.ctx, ast.Store)}
    assert names == set(reduced(notebook))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_logic(path):
    defined = []
    for cell in read(path).cells:
        if cell.cell_type == "code":
            source = "\n".join(s for s in cell.source.splitlines() if not s.startswith("%"))
            logic = ast.FunctionDef | ast.ClassDef | ast.While | ast.For
            defined += [n for n in ast.walk(ast.parse(source)) if isinstance(n, logic)]
    if path.stem == OWN_RULE:
        rule, credit = defined
        assert isinstance(rule, ast.ClassDef)
        assert isinstance(credit, ast.FunctionDef)
        assert credit.name == "credit"
        assert credit in rule.body
    else:
        assert not defined


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_output(path):
    assert not [cell.id for cell in read(path).cells if cell.get("outputs")]
