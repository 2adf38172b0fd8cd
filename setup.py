"""Packaging of specdec: what pyproject.toml cannot state.

The needed packages depend on the environment, and an editable install has to be found by fairseq.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel
from wheel.wheelfile import WheelFile

PACKAGE = Path(__file__).resolve().parent / "specdec_plugins"
STAND_IN = f'''"""Where fairseq looks for --user-dir: stands for the package, which is elsewhere."""
__path__.insert(0, {str(PACKAGE)!r})
__file__ = {str(PACKAGE / "__init__.py")!r}
with open(__file__, encoding="utf-8") as _file:
    exec(compile(_file.read(), __file__, "exec"))
'''


class EditableWheel(editable_wheel):
    """An editable install in which fairseq finds ``--user-dir specdec_plugins`` from anywhere.

    Python finds an editable package by an import hook. fairseq asks for a folder, here or beside
    its own, so that there has to be one in site-packages.
    """

    def run(self) -> None:
        super().run()
        for path in Path(self.dist_dir).glob("*.whl"):
            with tempfile.TemporaryDirectory() as folder:
                with ZipFile(path) as wheel:
                    wheel.extractall(folder)
                (Path(folder) / PACKAGE.name).mkdir()
                (Path(folder) / PACKAGE.name / "__init__.py").write_text(STAND_IN, "utf-8")
                path.unlink()
                with WheelFile(path, "w") as wheel:
                    wheel.write_files(folder)


# Stock fairseq stops at Python 3.10; ve-fairseq has wheels of it for 3.11 and 3.12. fairseq-fixed,
# if this environment has it, stays: ve-fairseq would be installed into its folder.
FAIRSEQ = ['fairseq==0.12.2; python_version<"3.11"']
if not any(distributions(name="fairseq-fixed")):
    FAIRSEQ += ['ve-fairseq>=0.12.3,<0.13; python_version>="3.11"']

setup(
    cmdclass={"editable_wheel": EditableWheel},
    install_requires=[
        "torch>=2.11,<2.14",  # the oldest and the newest that were tried
        *FAIRSEQ,
        "filelock>=4",
        "jinja2>=3",
        "msgspec>=0.19",
        "numba>=0.60",
        "numpy",
        "regex",
        "sacrebleu>=2.3",
        "sacremoses>=0.1",
        "scikit-learn>=1.5",
        "subword-nmt>=0.3.8",
        "tqdm",
    ],
)
