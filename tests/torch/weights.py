"""Compares Paceline's logits with those of PyTorch, for every model: python tests/torch/weights.py PROGRAM LOGITS

PROGRAM is the built program, LOGITS the built example `logits`. Each model is trained for some steps, so that no tensor
has its initial values, and its file of weights is loaded into the module of docs/weights/models.py. Then 32 samples of
the test set go through both.

Both compute in 32-bit floats but add in different orders. A sum of n products of size 1 differs by about sqrt(n) x 6e-8,
and norm layers keep the size of the values, so that after 20 layers differences of some 1e-6 of the largest logit are
expected; the test allows 1e-5. A transposed tensor, a wrong order of channels or a missing norm changes logits by a
large part of their size. Where the two largest logits differ by more than the tolerance, the predicted class must be
the same.
"""

import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "weights"))
import models

TOLERANCE = 1e-5

# Model, data, and further flags. cifar10 is random noise that this script writes: color images of another size.
CASES = [
    ("softmax", "digits", ["--epochs", "1"]),
    ("mlp", "digits", ["--epochs", "1"]),
    ("mlp", "patterns", ["--epochs", "0.3"]),
    ("cnn", "digits", ["--epochs", "1"]),
    ("resnet8", "digits", ["--epochs", "0.5"]),
    ("resnet8-bn", "digits", ["--epochs", "0.5"]),
    ("resnet20", "patterns", ["--samples", "320", "--epochs", "1"]),
    ("resnet20-bn", "patterns", ["--samples", "320", "--epochs", "1"]),
    ("resnet18", "digits", ["--samples", "64", "--epochs", "1"]),
    ("resnet18-bn", "digits", ["--samples", "64", "--epochs", "1", "--learning-rate", "0.01"]),
    ("charlm", "text", ["--samples", "160", "--epochs", "1"]),
    ("softmax", "cifar10", ["--samples", "160", "--epochs", "1", "--learning-rate", "0.002"]),
    ("cnn", "cifar10", ["--samples", "160", "--epochs", "1", "--learning-rate", "0.002"]),
    ("resnet20-bn", "cifar10", ["--samples", "160", "--epochs", "1", "--learning-rate", "0.002"]),
]


def write_cifar10(folder):
    """Files in the binary format of CIFAR-10: a label and 3 x 32 x 32 bytes per image, of random colors.

    The program checks their length, so each holds 10,000 images: the same 100, over and over.
    """
    dice = random.Random(1)
    place = folder / "cifar10"
    place.mkdir(parents=True)
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        images = b"".join(bytes([i % 10]) + dice.randbytes(3072) for i in range(100))
        (place / name).write_bytes(100 * images)


def trained(program, folder, model, data, flags, data_dir):
    command = [program, "train", "--model", model, "--data", data, "--workers", "2", "--batch", "8"]
    command += ["--strategy", "ssgd", "--checkpoints", str(folder), "--no-report"] + flags
    if data == "cifar10":
        command += ["--data-dir", str(data_dir)]
    subprocess.run(command, check=True, cwd=folder.parent, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("round-*"))[-1]


def compare(program, example, folder, case, data_dir):
    model, data, flags = case
    saved = trained(program, folder / f"{model}-{data}", model, data, flags, data_dir)
    output = folder / f"{model}-{data}.safetensors"
    subprocess.run([example, str(saved), str(output)], check=True, stdout=subprocess.DEVNULL)
    ours = load_file(output)
    inputs, logits = ours["inputs"], ours["logits"]
    height, width, channels = inputs.shape[1:]
    module = models.named(model, height, width, channels, logits.shape[2])
    state = load_file(saved / "weights.safetensors")
    module.load_state_dict(state)
    module.eval()
    assert sorted(state) == sorted(module.state_dict()), "no tensor is filled in by PyTorch"
    x = inputs[:, 0, 0, :-1].long() if model == "charlm" else inputs.permute(0, 3, 1, 2)
    with torch.no_grad():
        theirs = module(x).reshape(logits.shape)
    scale = logits.abs().max().item()
    error = (theirs - logits).abs().max().item() / scale
    top = logits.topk(2, dim=2).values
    is_clear = top[..., 0] - top[..., 1] > 2 * TOLERANCE * scale
    same = (theirs.argmax(2) == logits.argmax(2)) | ~is_clear
    moved = {name: int(state[name]) for name in state if name.endswith("bn1.num_batches_tracked")}
    steps = f", {max(moved.values())} steps tracked" if moved else ""
    print(f"{model:12} {data:9} {len(state):4} tensors, largest logit {scale:8.4f}, "
          f"largest difference {error:.1e} of it{steps}", flush=True)
    assert error < TOLERANCE, f"{model}: logits differ by {error} of the largest"
    assert same.all(), f"{model}: another class"
    # The way back: the program reads what PyTorch saves, and has the same logits bit for bit.
    again = folder / "again.safetensors"
    save_file(module.state_dict(), again)
    subprocess.run([example, str(saved), str(output), str(again)], check=True, stdout=subprocess.DEVNULL)
    assert torch.equal(load_file(output)["logits"], logits), f"{model}: other logits on the way back"


def main():
    program, example = (str(pathlib.Path(argument).resolve()) for argument in sys.argv[1:3])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_cifar10(folder / "data")
        for case in CASES:
            compare(program, example, folder, case, folder / "data")
    print(f"{len(CASES)} models agree within {TOLERANCE} of the largest logit")


if __name__ == "__main__":
    main()
