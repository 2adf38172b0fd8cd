"""Packaging of specdec: speculative decoding for sequence-to-sequence translation."""

from __future__ import annotations

import re
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

from setuptools import find_packages, setup
from setuptools.command.editable_wheel import editable_wheel
from wheel.wheelfile import WheelFile

ROOT = Path(__file__).resolve().parent
README = ROOT / "README.md"
# Read, not imported: importing the package would import fairseq, which is not installed yet.
VERSION = re.search(
    r'^__version__ = "(.+)"$',
    (ROOT / "specdec_plugins" / "__init__.py").read_text("utf-8"),
    re.MULTILINE,
)
if VERSION is None:
    raise RuntimeError("specdec_plugins/__init__.py does not state __version__")

PACKAGE = ROOT / "specdec_plugins"
STAND_IN = f'''"""Where fairseq looks for --user-dir: stands for the package, which is elsewhere."""
__path__.insert(0, {str(PACKAGE)!r})
__file__ = {str(PACKAGE / "__init__.py")!r}
with open(__file__, encoding="utf-8") as _file:
    exec(compile(_file.read(), __file__, "exec"))
'''

COMMANDS = {
    "specdec-calibrate-head": "calibrate_head",
    "specdec-check": "check",
    "specdec-encoder-initial": "encoder_initial",
    "specdec-evaluate": "evaluate",
    "specdec-export": "export_checkpoint",
    "specdec-make-pair": "make_pair",
    "specdec-serve": "serve",
    "specdec-trace-report": "trace_report",
    "specdec-train": "train",
    "specdec-tune": "tune",
    "specdec-translate": "inference",
    "specdec-translate-corpus": "translate_corpus",
}


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
PLOT = ["matplotlib>=3.8"]
INT8 = ["onnx>=1.17", "onnxruntime>=1.20"]
CTRANSLATE2 = ["ctranslate2>=4.5"]
BENCH = [*PLOT, *CTRANSLATE2]
SENTENCEPIECE = ["sentencepiece>=0.1.99"]
HF = ["safetensors>=0.4", *SENTENCEPIECE]
HF_TEST = [*HF, "transformers>=5"]
# Half a gigabyte with what it needs, for one script: not for everyone who runs the tests.
RAY = ["ray>=2.60"]
SUBTITLES = ["webvtt-py>=0.6"]
SERVE = ["prometheus-client>=0.20", "sentencex>=1", "starlette>=0.40", "uvicorn>=0.30"]
TEST = [*PLOT, *INT8, "filelock>=4", "hypothesis>=6.100", "pytest>=8"]
TEST += [*SENTENCEPIECE, "pytest-cov>=5", "pytest-xdist>=3.5"]
# Clients of the service's protocols, which are not ours.
CLIENTS = ["deepl>=1.18", "libretranslatepy>=2.1"]
# It drives a browser that the system has; it needs none of its own.
BROWSER = ["playwright>=1.40"]
DEV = [
    *TEST,
    *BENCH,
    *HF_TEST,
    *RAY,
    *SERVE,
    *SUBTITLES,
    *CLIENTS,
    *BROWSER,
    "mypy>=1.10",
    "ruff>=0.6",
]

setup(
    name="specdec-plugins",
    version=VERSION.group(1),
    description="Speculative decoding for sequence-to-sequence translation, as a fairseq plugin",
    long_description=README.read_text("utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    author="The specdec authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.13",
    packages=find_packages(include=["specdec_plugins", "specdec_plugins.*"]),
    package_data={
        "specdec_plugins": ["py.typed"],
        "specdec_plugins.inference": ["*.html"],
        "specdec_plugins.serve": ["*.html"],
    },
    zip_safe=False,
    entry_points={
        "console_scripts": [
            f"{command} = specdec_plugins.cli.{module}:main" for command, module in COMMANDS.items()
        ]
    },
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
    extras_require={
        "int8": INT8,
        "ctranslate2": CTRANSLATE2,
        "bench": BENCH,
        "hf": HF,
        "hf-test": HF_TEST,
        "plot": PLOT,
        "ray": RAY,
        "serve": SERVE,
        "subtitles": SUBTITLES,
        "sentencepiece": SENTENCEPIECE,
        "test": TEST,
        "dev": DEV,
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
