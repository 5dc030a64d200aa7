"""Evidence for images: hidden patches and boxes, each against plain loops, kept as it goes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from attnflow.cli.app import main
from attnflow.data import name_subject
from attnflow.errors import FileError, InputError, ModelError
from attnflow.evaluation import ImageExample, Images, evaluate
from attnflow.evaluation.records import RANDOM
from attnflow.evaluation.subjects.examples import read_images
from attnflow.evaluation.subjects.images import (
    CENTRE,
    LEAVE_ONE_OUT,
    ImageJudge,
    PatchAblation,
    centre_map,
)
from attnflow.hosts.images import read_photo
from attnflow.hosts.model import Model
from attnflow.hosts.vision_language.towers import image_prompt
from attnflow.models.scenes import load_scenes
from attnflow.testing import tiny_vision_model
from attnflow.tokens import Grid
from attnflow_experiments.scenes.drawn_scenes import TEST_SEED, scenes

MODEL, PROCESSOR = tiny_vision_model()
LOADED = Model(MODEL, None, PROCESSOR)
GRID = Grid(4, 4, 1, 32, 32)
RNG = np.random.default_rng(0)
IMAGES = list(RNG.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8))


def plain_probability(pixels: torch.Tensor, hidden: Any, filling: torch.Tensor) -> float:
    """The answer's probability, patch after patch painted over by hand."""
    painted = pixels.clone()
    for patch in hidden:
        row, column = divmod(patch, 4)
        part = (..., slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8))
        painted[part] = filling[part]
    with torch.no_grad():
        answer = MODEL(pixel_values=pixels).logits.argmax()
        return float(MODEL(pixel_values=painted).logits[0].softmax(-1)[answer])


@pytest.mark.parametrize("by", ["mean", "zero"])
def test_hidden_patches_and_areas_equal_plain_loops(by: Any) -> None:
    pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    filling = torch.zeros_like(pixels)
    if by == "mean":
        for channel in range(3):
            filling[0, channel] = pixels[0, channel].mean()
    ablation = PatchAblation(Model(MODEL), {"pixel_values": pixels}, GRID, by=by, batch_size=3)
    values = RNG.random((4, 4))
    order = sorted(range(16), key=lambda k: -values.ravel()[k])
    steps = [-(-16 * step // 10) for step in range(11)]
    deletion = [plain_probability(pixels, order[:count], filling) for count in steps]
    insertion = [plain_probability(pixels, order[count:], filling) for count in steps]
    curves = ablation.curves(values)
    np.testing.assert_allclose(curves.deletion[0], deletion, atol=1e-6)
    np.testing.assert_allclose(curves.insertion[0], insertion, atol=1e-6)
    area = sum((a + b) / 2 for a, b in pairwise(deletion)) / 10
    assert curves.deletion_area[0] == pytest.approx(area, abs=1e-6)
    alone = [deletion[0] - plain_probability(pixels, [k], filling) for k in range(16)]
    np.testing.assert_allclose(ablation.leave_one_out().ravel(), alone, atol=1e-6)


def test_blurred_patches_are_made_of_what_is_around_them() -> None:
    pixels = torch.ones(1, 3, 32, 32)
    pixels[..., :16] = -1.0
    ablation = PatchAblation(Model(MODEL), {"pixel_values": pixels}, GRID, by="blur")
    assert torch.isfinite(ablation.filling).all()
    assert ablation.filling[0, 0].mean().abs() < 0.1
    with pytest.raises(Exception, match="Allowed: 'mean', 'blur', 'zero'"):
        PatchAblation(Model(MODEL), {"pixel_values": pixels}, GRID, by="magic")  # type: ignore[arg-type]


def judge_images() -> ImageJudge:
    return Images(batch_size=8).judge(LOADED, IMAGES, ["rollout"], 0)


def test_a_box_goes_the_way_of_the_photo() -> None:
    judge = judge_images()
    photo = read_photo(np.zeros((64, 128, 3), np.uint8))  # squeezed to 32 × 32
    cover = judge._cover(ImageExample(photo, box=(32, 16, 64, 48)), photo, GRID)
    assert cover is not None
    expected = np.zeros((4, 4))
    expected[1:3, 1] = 1.0
    assert np.abs(cover[0] - expected).max() < 0.2  # resizing blurs the edges
    np.testing.assert_array_equal(cover[1], expected > 0)
    assert judge._cover(ImageExample(photo, box=(500, 500, 600, 600)), photo, GRID) is None


def test_pointing_and_mass_follow_the_map() -> None:
    example = ImageExample(IMAGES[0], box=(0, 0, 16, 16))
    record = judge_images().record(0, example)
    assert record.left_out == ""
    assert set(record.scores) == {"rollout", LEAVE_ONE_OUT, CENTRE, RANDOM}
    centre = centre_map(GRID)
    mass = centre[:2, :2].sum() / centre.sum()
    assert record.scores[CENTRE]["mass"] == pytest.approx(mass, abs=1e-6)
    assert record.scores[CENTRE]["density"] == pytest.approx(mass / 0.25, abs=1e-6)
    assert record.scores[CENTRE]["pointing"] in (0.0, 1.0)


def test_a_run_is_kept_and_goes_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {"methods": ["rollout", "raw"]}
    whole = evaluate(LOADED, IMAGES, **options)
    journal = tmp_path / "run.jsonl"
    evaluate(LOADED, IMAGES, **options, journal=journal)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # stopped in the third image
    again = evaluate(LOADED, IMAGES, **options, journal=journal)
    for row in whole.rows:
        np.testing.assert_array_equal(again.values(row, "deletion"), whole.values(row, "deletion"))
    with pytest.raises(Exception, match="another"):
        evaluate(LOADED, IMAGES, **options, subject=Images(by="zero"), journal=journal)


def test_what_cannot_be_read_is_left_out_and_told(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_text("no image")
    images = [tmp_path / "bad.png", IMAGES[0]]
    evaluation = evaluate(LOADED, images, ["raw"])
    assert len(evaluation.used) == 1
    assert any("1 of 2 images were left out" in line for line in evaluation.verdict())
    assert "too few" in evaluation.verdict()[0]
    with pytest.raises(InputError, match="None of 1 images can be read"):
        evaluate(LOADED, images[:1])
    with pytest.raises(InputError, match="There are no images"):
        evaluate(LOADED, [], subject=Images())


def test_methods_that_a_model_refuses_are_named() -> None:
    kinds = ["rollout", "norm-rollout:matrices=norms-layernorm"]
    evaluation = evaluate(LOADED, IMAGES[:1], kinds)
    assert list(evaluation.refused) == ["norm-rollout:matrices=norms-layernorm"]
    with pytest.raises(ModelError, match="No method can be run on this model"):
        evaluate(LOADED, IMAGES[:1], kinds[1:])


# -- tables of images -----------------------------------------------------------------------------


def test_tables_of_every_kind_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('path,label,box\na.png,cat,"1, 2, 3, 4"\nb.png,,\n')
    (tmp_path / "t.tsv").write_text("path\tlabel\tbox\na.png\tcat\t1 2 3 4\nb.png\t\t\n")
    rows = [{"path": "a.png", "label": "cat", "box": [1, 2, 3, 4]}, {"path": "b.png"}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"path": ["a.png", "b.png"], "label": ["cat", None]})
    boxes = arrow.array([[1.0, 2.0, 3.0, 4.0], None])
    parquet.write_table(table.append_column("box", boxes), tmp_path / "t.parquet")
    expected = [
        ImageExample(tmp_path / "a.png", "cat", (1.0, 2.0, 3.0, 4.0)),
        ImageExample(tmp_path / "b.png"),
    ]
    for kind in ("csv", "tsv", "jsonl", "parquet"):
        assert name_subject(tmp_path / f"t.{kind}") == "image", kind
        assert read_images(tmp_path / f"t.{kind}") == expected, kind


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"path": "a.png", "box": "1 2 3"}', "a box is four numbers"),
        ('{"path": "a.png", "box": [3, 2, 1, 4]}', "the first two below the last two"),
        ('{"name": "a.png"}', "has no path: it has the columns 'name'"),
        ("nonsense", "Line 1 of .* is not JSON"),
        ("[1]", "is neither a text nor an object"),
        ("", "names no image"),
    ],
)
def test_tables_that_cannot_be_read_say_why(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(InputError, match=sentence):
        read_images(tmp_path / "t.jsonl")
    with pytest.raises(FileError, match="There is no file or folder"):
        read_images(tmp_path / "nowhere.csv")


def test_a_folder_or_table_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    MODEL.save_pretrained(tmp_path / "vit")  # type: ignore[operator]
    PROCESSOR.save_pretrained(tmp_path / "vit")
    (tmp_path / "data").mkdir()
    Image.fromarray(IMAGES[0]).save(tmp_path / "data" / "a.png")
    (tmp_path / "data" / "t.csv").write_text("path,label,box\na.png,cat,0 0 16 16\n")

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["attnflow", "evaluate", *map(str, arguments)])
        try:
            status = main()
        except SystemExit as stop:
            status = stop.code  # type: ignore[assignment]
        captured = capsys.readouterr()
        return int(status or 0), " ".join(f"{captured.out} {captured.err}".split())

    common = ("--model", tmp_path / "vit", "--methods", "rollout")
    status, words = run("--data", tmp_path / "data", *common, "--output", tmp_path / "out")
    assert status == 0, words
    assert "1 images from data" in words
    assert "deletion ↓" in words
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("evaluation.csv", "evaluation.jsonl", "evaluation.md", "evaluation.png")
    ]
    status, words = run("--data", tmp_path / "data" / "t.csv", *common)
    assert status == 0, words
    assert "pointing ↑" in words
    assert "name a vision model" in run("--data", tmp_path / "data")[1]
    assert "by='unk'" in run("--data", tmp_path / "data", *common, "--by", "unk")[1]


# -- questions about images -----------------------------------------------------------------------


def write_questions(folder: Path, count: int, *, question: bool = True) -> Path:
    lines = ["path,question,label,box"]
    for number, scene in enumerate(scenes(count, seed=TEST_SEED)):
        asked = scene.questions[number % len(scene.questions)]
        Image.fromarray(scene.image()).save(folder / f"{number}.png")
        box = " ".join(map(str, scene.objects[asked.answer_object].box))
        word = asked.answer.split()[0]
        lines.append(f"{number}.png,{asked.text if question else ''},{word},{box}")
    (folder / "scenes.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "scenes.csv"


def test_a_model_that_answers_questions_is_held_against_hidden_patches(tmp_path: Path) -> None:
    examples = read_images(write_questions(tmp_path, 6))
    evaluation = evaluate("scenes", examples, ["gradient-rollout", "raw"])
    assert evaluation.accuracy() == 1.0
    best = evaluation.summary("gradient-rollout", "deletion").mean
    for other in ("random", "centre"):
        assert best < evaluation.summary(other, "deletion").mean
    mass = evaluation.summary("gradient-rollout", "mass").mean
    assert mass > 4 * evaluation.summary("random", "mass").mean
    assert evaluation.summary("gradient-rollout", "pointing").mean == 1.0


def test_one_image_is_read_as_an_image_not_as_a_text(tmp_path: Path) -> None:
    path = tmp_path / "SCENE.PNG"
    Image.fromarray(next(scenes(1, seed=TEST_SEED)).image()).save(path)
    assert name_subject(path) == "image"
    assert [example.image for example in read_images(path)] == [path]
    with pytest.raises(InputError, match="has no question"):
        evaluate("scenes", path, ["raw"])


def test_hidden_patches_of_a_question_are_those_of_a_plain_run() -> None:
    model, processor = load_scenes()
    scene = next(scenes(1, seed=TEST_SEED))
    inputs = image_prompt(model, scene.questions[0].text, [scene.image()], processor)
    grid = Grid(6, 6, 1, 48, 48)
    ablation = PatchAblation(Model(model, processor.tokenizer), inputs, grid, by="zero")
    pixels = inputs.pop("pixel_values")
    assert ablation.answer == scene.questions[0].answer
    changed = pixels.clone()
    changed[..., :8, 8:16] = 0.0  # patch 1
    changed[..., 40:, 40:] = 0.0  # patch 35
    with torch.no_grad():
        logits = model(**inputs, pixel_values=changed).logits[0, -1].double()
    expected = float(logits.softmax(-1)[ablation.choice])
    assert ablation.probabilities([(), (1, 35)])[1] == pytest.approx(expected, abs=1e-6)


def test_questions_are_needed_and_images_seen_whole(tmp_path: Path) -> None:
    examples = read_images(write_questions(tmp_path, 2, question=False))
    with pytest.raises(InputError, match="give the table a column 'question'"):
        evaluate("scenes", examples)
