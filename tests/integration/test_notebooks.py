"""Every notebook runs from top to bottom, at reduced size."""

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
REDUCED = {"first_look": {"draws": 500, "steps": 5, "replicas": 4}}


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def parameters_cell(notebook: nbformat.NotebookNode) -> int:
    (index,) = (
        i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])
    )
    return index


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_and_draws(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = read(path)
    sizes = "\n".join(f"{name} = {value!r}" for name, value in REDUCED[path.stem].items())
    notebook.cells.insert(parameters_cell(notebook) + 1, nbformat.v4.new_code_cell(sizes))
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert not [out for out in outputs if out.output_type == "stream" and out.name == "stderr"]
    drawing = [cell for cell in notebook.cells if "plots." in cell.source]
    assert drawing
    for cell in drawing:
        assert any("image/png" in out.get("data", {}) for out in cell.outputs), cell.id


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_reduced_is_what_the_notebook_lets_one_set(path):
    notebook = read(path)
    cell = notebook.cells[parameters_cell(notebook)]
    names = {
        target.id
        for node in ast.parse(cell.source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert names == set(REDUCED[path.stem])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_logic(path):
    for cell in read(path).cells:
        if cell.cell_type == "code" and not cell.source.startswith("%"):
            defined = ast.FunctionDef | ast.ClassDef | ast.While | ast.For
            assert not [n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, defined)]
