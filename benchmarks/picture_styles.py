"""What a frozen pretrained network and each algorithm add for pictures of a style that no site trained on.

Pictures of CIFAR-10's test set become a folder of four sites, one style each: photographs as they are, grey
ones, edges drawn dark on white, and posters (few colours, smoothed). No two sites share a picture. They have
32 x 32 pixels and are enlarged, so they are much blurrier than the backbone's own pictures were. Then two
studies are run, from scratch and with the backbone, and one table holds both.

    python -m benchmarks.picture_styles --out results/picture-styles      # needs FEDILC_DATA with CIFAR-10
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps

from fedilc.data.download import data_folder
from fedilc.paper.image_benchmarks import read_cifar10
from fedilc.seeds import numpy_generator
from fedilc.studies.study.data import study_data
from fedilc.studies.study.plan import StudyPlan, usual_settings
from fedilc.studies.study.run import run_study

CLASSES = {0: "airplane", 1: "car", 4: "deer", 7: "horse", 8: "ship"}
STYLES = ("photo", "grey", "sketch", "poster")
PIXELS = 128


def styled(picture: Image.Image, style: str) -> Image.Image:
    """Return a picture, enlarged, in a style."""
    large = picture.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    if style == "grey":
        return ImageOps.grayscale(large)
    if style == "sketch":
        edges = ImageOps.grayscale(large).filter(ImageFilter.GaussianBlur(1.5)).filter(ImageFilter.CONTOUR)
        return ImageOps.autocontrast(edges)
    if style == "poster":
        return ImageOps.posterize(large.filter(ImageFilter.ModeFilter(7)), 2)
    return large


def make_pictures(folder: Path, each: int) -> None:
    """Write so many pictures per class and style, as STYLE/CLASS/number.png."""
    _, _, images, labels = read_cifar10(data_folder())
    pixels: NDArray[np.uint8] = images.transpose(0, 2, 3, 1)
    for number, name in CLASSES.items():
        rows = numpy_generator(0, "picture styles", name).permutation(np.flatnonzero(labels == number))
        for place, style in enumerate(STYLES):
            target = folder / style / name
            target.mkdir(parents=True, exist_ok=True)
            for row in rows[place * each : (place + 1) * each]:
                styled(Image.fromarray(pixels[row]), style).save(target / f"{row}.png")


def study(folder: Path, out: Path, options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return accuracies by method and held-out style, and the seconds of features and training."""
    started = time.perf_counter()
    data = study_data([str(folder)], **options)
    read = time.perf_counter() - started
    plan = StudyPlan(data, usual_settings(data, given).with_given(given))
    result = run_study(plan, out, jobs=2)
    found: dict[str, dict[str, float]] = {}
    for site in plan.held_out:
        for method, outputs in result.outputs[site].items():
            shares = [float((one.argmax(1) == data.labels[site]).mean()) for one in outputs]
            found.setdefault(method, {})[site] = float(np.mean(shares))
    return {"reading": read, "seconds": time.perf_counter() - started, "accuracy": found}


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return both studies as a Markdown table."""
    lines = [f"| inputs | method | {' | '.join(STYLES)} | mean |", "|---" * (len(STYLES) + 3) + "|"]
    for inputs, result in results.items():
        for method, by_site in result["accuracy"].items():
            cells = [f"{by_site[site]:.3f}" if site in by_site else "-" for site in STYLES]
            mean = np.mean([by_site[site] for site in STYLES if site in by_site])
            lines.append(f"| {inputs} | {method} | {' | '.join(cells)} | {mean:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture_styles")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--each", type=int, default=60, help="pictures per class and style")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--image-size", type=int, default=PIXELS)
    parser.add_argument("--only", choices=["features", "pixels"], help="one of the two studies")
    arguments = parser.parse_args()
    pictures = arguments.out / "pictures"
    shutil.rmtree(pictures, ignore_errors=True)
    make_pictures(pictures, arguments.each)
    given = {"seeds": arguments.seeds, "choose_by": "validation"}
    frozen = {"backbone": arguments.backbone, "image_size": arguments.image_size}
    results = {}
    if arguments.only != "pixels":
        results[arguments.backbone] = study(pictures, arguments.out / "backbone", frozen, given)
    if arguments.only != "features":
        scratch = {**given, "references": False}
        results["pixels"] = study(pictures, arguments.out / "pixels", {}, scratch)
    (arguments.out / "styles.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.out / "table.md").write_text(table(results) + "\n")
    print(table(results))
    for inputs, result in results.items():
        print(f"{inputs}: {result['seconds']:.0f} s, of which {result['reading']:.0f} s to read pictures")


if __name__ == "__main__":
    sys.exit(main())
