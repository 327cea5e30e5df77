"""PyTorch's own Python, of another environment than mpsd's."""

from tests.gpu.comparison.stage import ROOT, Stage


def has_torch(stage: Stage) -> bool:
    """Return whether PyTorch is installed; if not, add a row that reports it."""
    if stage.options.torch_python is None or stage.options.is_simulated:
        stage.add("skipped", remark="no Python with PyTorch and a GPU here (--torch-python names one)")
        return False
    return True


def python_path(stage: Stage) -> str:
    """For a Python of another environment, of the same version: mpsd's, and the client that is built in the checkout."""
    site = sorted((stage.options.python.parent.parent / "lib").glob("python3*/site-packages"))
    return ":".join(map(str, [ROOT / "clients/python", *site]))
