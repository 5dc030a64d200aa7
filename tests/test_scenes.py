"""Drawn scenes: what is drawn, what the small model answers, and what its answers point at."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import attnflow
from attnflow import capture
from attnflow.cli.app import _run, app
from attnflow.errors import FileError, InputError, ModelError
from attnflow.explainers.defaults import DEFAULTS
from attnflow.models.scenes import load_scenes
from attnflow.show.plots.images import carried_pictures
from attnflow.tokens.patches import Grid, ImagePatches
from attnflow_experiments.scenes.drawn_scenes import (
    COLOURS,
    SHAPES,
    TEST_SEED,
    Question,
    Scene,
    SceneObject,
    questions_about,
    scenes,
)
from attnflow_experiments.scenes.experiment import CONTENDERS, DEFAULT, Scenes
from attnflow_experiments.scenes.observe import SceneQuestion, _map, _mass, _points_at

IMAGE_METHOD = DEFAULTS["question about images"]
PAIR = Scene(
    (SceneObject("circle", "red", (0, 16, 16, 32)), SceneObject("cross", "blue", (32, 16, 48, 32))),
    seed=9,
)


@pytest.fixture(scope="module")
def small() -> tuple[Any, Any]:
    return load_scenes()


def test_objects_of_a_scene_differ_and_do_not_touch() -> None:
    for scene in scenes(60, seed=11):
        assert len({item.shape for item in scene.objects}) == len(scene.objects)
        assert len({item.colour for item in scene.objects}) == len(scene.objects)
        for k, item in enumerate(scene.objects):
            for other in scene.objects[k + 1 :]:
                apart = [
                    item.box[2] <= other.box[0] or other.box[2] <= item.box[0],
                    item.box[3] <= other.box[1] or other.box[3] <= item.box[1],
                ]
                assert any(apart)


def test_an_object_is_drawn_in_its_box_and_in_its_colour() -> None:
    image = PAIR.image().astype(float)
    ground = np.median(image.reshape(-1, 3), axis=0)
    left, top, right, bottom = PAIR.objects[0].box
    middle = image[(top + bottom) // 2 - 2 : (top + bottom) // 2 + 2, (left + right) // 2]
    assert np.abs(middle.mean(axis=0) - COLOURS["red"]).max() < 25
    outside = np.ones(image.shape[:2], dtype=bool)
    for item in PAIR.objects:
        outside[item.box[1] : item.box[3], item.box[0] : item.box[2]] = False
    assert np.abs(image[outside] - ground).max() < 50


def test_each_shape_is_drawn_otherwise() -> None:
    drawings = [
        Scene((SceneObject(shape, "red", (8, 8, 24, 24)),), seed=3).image() for shape in SHAPES
    ]
    assert len({drawing.tobytes() for drawing in drawings}) == len(SHAPES)


def test_questions_name_the_object_that_answers_them() -> None:
    answers = {question.text: question for question in PAIR.questions}
    assert answers["what colour is the cross?"].answer == "blue"
    assert answers["what shape is red?"].answer_object == 0
    place = answers["what is right of the circle?"]
    assert (place.answer, place.answer_object, place.reference) == ("blue cross", 1, 0)
    assert "what is above the circle?" not in answers  # they are side by side


def test_a_place_with_two_objects_is_not_asked_for() -> None:
    three = (*PAIR.objects, SceneObject("ring", "green", (32, 32, 48, 48)))
    texts = [question.text for question in questions_about(three)]
    assert "what is right of the circle?" not in texts


def test_a_number_of_scenes_is_checked() -> None:
    with pytest.raises(InputError, match="count=0"):
        next(scenes(0, seed=1))


def test_a_folder_without_the_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.safetensors is missing"):
        load_scenes(tmp_path)


def test_mass_on_a_box_is_that_of_the_parts_of_patches_inside() -> None:
    image = ImagePatches("image 1", Grid(6, 6, 0, 48, 48))
    scores = np.arange(36.0)
    assert _mass(scores, image, (0, 0, 48, 48)) == scores.sum()
    assert _mass(scores, image, (4, 0, 8, 8)) == 0.0
    assert np.isclose(_mass(scores, image, (8, 4, 16, 12)), 0.5 * scores[1] + 0.5 * scores[7])


def test_a_map_points_at_the_object_with_most_mass_per_area() -> None:
    image = ImagePatches("image 1", Grid(6, 6, 0, 48, 48))
    question = Question("what colour is the circle?", "red", 0, "colour")
    asked = SceneQuestion(None, None, PAIR, question)
    scores = np.zeros((6, 6))
    scores[3, 1] = 1.0
    assert _points_at(scores.ravel(), image, asked)
    scores[3, 5] = 2.0
    assert not _points_at(scores.ravel(), image, asked)


def test_the_small_model_answers_questions_about_scenes(small: tuple[Any, Any]) -> None:
    model, processor = small
    asked = [(scene, scene.questions[0]) for scene in scenes(20, seed=TEST_SEED)]
    right = 0
    for scene, question in asked:
        result = attnflow.generate(
            (model, processor), question.text, images=[scene.image()], max_new_tokens=3
        )
        right += result.provenance["completion"].strip() == question.answer
    assert right >= 16


def test_each_word_of_an_answer_is_over_patches_and_words(small: tuple[Any, Any]) -> None:
    model, processor = small
    question = next(q for q in PAIR.questions if q.kind == "place")
    result = attnflow.generate(
        (model, processor), question.text, images=[PAIR.image()], max_new_tokens=4
    )
    assert result.method == IMAGE_METHOD
    (image,) = result.sources.images
    assert (image.grid.rows, image.grid.columns, image.grid.prefix) == (6, 6, 1)
    assert list(result.sources)[-1] == "?"
    assert result.values.shape[1] == len(result.targets)
    assert result.values.shape[2] == 37 + 1 + len(question.text.replace("?", " ?").split())


def test_rollout_of_an_answer_is_a_distribution(small: tuple[Any, Any]) -> None:
    model, processor = small
    question = PAIR.questions[0]
    result = attnflow.explain((model, processor), question.text, "rollout", images=[PAIR.image()])
    assert np.isclose(result.layer(-1).values.sum(), 1.0, atol=1e-4)


def test_the_command_line_takes_an_image(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image").fromarray(PAIR.image()).save(tmp_path / "scene.png")
    run = CliRunner().invoke(
        app,
        [
            *("generate", "--model", "scenes", "--images", str(tmp_path / "scene.png")),
            *("--output", str(tmp_path / "map.png"), "what colour is the circle?"),
        ],
    )
    assert run.exit_code == 0, run.output
    assert "“red” draws on" in run.output
    assert "the area left of the middle of the image (" in run.output
    assert "patch" not in run.output  # people see places, not numbers of patches
    assert (tmp_path / "map.png").stat().st_size > 5_000


def test_the_command_line_says_what_is_wrong_with_an_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = pytest.importorskip("PIL.Image")
    (tmp_path / "notes.png").write_text("not an image")
    picture = images.fromarray(PAIR.image())
    picture.save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:700])
    picture.quantize(8).save(tmp_path / "palette.png")
    picture.convert("L").save(tmp_path / "grey.png")

    def ask(name: str) -> tuple[int, str]:
        question = "what shape is left of the cross?"
        status = _run(
            ["generate", "--model", "scenes", "--images", str(tmp_path / name), question, "--json"]
        )
        return status, capsys.readouterr().err

    for name, sentence in {
        "notes.png": "is not an image that can be read",
        "cut.jpg": "is broken or cut off",
        "none.png": "there is no such file",
    }.items():
        status, said = ask(name)
        assert status != 0
        assert sentence in said
        assert len([line for line in said.splitlines() if " reads about " not in line]) == 1
    assert ask("palette.png")[0] == ask("grey.png")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence", "code"),
    [
        (["--images", "SCENE", "a text"], "Text and images need the model's processor", 1),
        (["--images", "SCENE"], "Give one text to explain", 2),
        (["--model", "scenes", "SCENE"], "answers questions about images", 2),
        (["SCENE"], "Name a vision model", 2),
    ],
)
def test_explain_says_which_command_takes_the_image(
    arguments: list[str],
    sentence: str,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("PIL.Image").fromarray(PAIR.image()).save(tmp_path / "scene.png")
    named = [str(tmp_path / "scene.png") if one == "SCENE" else one for one in arguments]
    assert _run(["explain", *named]) == code
    assert sentence in capsys.readouterr().err


def test_explain_takes_a_question_about_an_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL.Image").fromarray(PAIR.image()).save(tmp_path / "scene.png")
    question = ["--images", str(tmp_path / "scene.png"), PAIR.questions[0].text]
    assert _run(["explain", "--model", "scenes", *question]) == 0
    shown = capsys.readouterr().out
    answer = re.search(r"The model says (\S+) ", shown)
    assert answer is not None
    assert re.search(rf"“{answer[1]}” draws on .*the image", shown)


def test_a_report_holds_the_image_and_its_maps(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image").fromarray(PAIR.image()).save(tmp_path / "scene.png")
    options = ["--model", "scenes", "--images", str(tmp_path / "scene.png")]
    output = ["--output", str(tmp_path / "report.html")]
    assert _run(["report", *options, "--prompt", PAIR.questions[0].text, *output]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "data:image/jpeg;base64," in page
    assert '"rows":6' in page
    assert _run(["report", *options, "a text", *output]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": []}, "images is empty"),
        ({"images": "scene.png"}, "images is a list"),
    ],
)
def test_wrong_images_get_a_sentence(
    small: tuple[Any, Any], arguments: dict[str, Any], message: str
) -> None:
    model, processor = small
    with pytest.raises(InputError, match=message):
        attnflow.generate((model, processor), "what shape is red?", **arguments)


def test_an_image_that_is_not_there_is_named(small: tuple[Any, Any]) -> None:
    model, processor = small
    with pytest.raises(FileError, match=r"There is no image 'no-such\.png'"):
        attnflow.generate((model, processor), "what shape is red?", images=["no-such.png"])


def test_a_photo_is_held_upright_and_its_loss_is_said(
    small: tuple[Any, Any], tmp_path: Path
) -> None:
    """A camera that lies on its side writes that into the file (EXIF); a map must not lie too."""
    images = pytest.importorskip("PIL.Image")
    upright = images.fromarray(PAIR.image()).resize((480, 480), images.Resampling.NEAREST)
    exif = images.Exif()
    exif[0x0112] = 6  # stored a quarter turn to the left: turn it to the right
    upright.transpose(images.Transpose.ROTATE_90).save(
        tmp_path / "turned.jpg", exif=exif, quality=95, subsampling=0
    )
    model, processor = small
    question = next(q for q in PAIR.questions if q.kind == "place")
    maps = [
        attnflow.generate((model, processor), question.text, images=[image]).of_image(0)
        for image in (PAIR.image(), tmp_path / "turned.jpg")
    ]
    assert maps[1].provenance["completion"].split() == question.answer.split()
    strongest = [int(np.argmax(one.layer(-1).values[0, 0])) for one in maps]
    assert strongest[0] == strongest[1]
    moving = [images.fromarray(PAIR.image()), images.fromarray(255 - PAIR.image())]
    moving[0].save(tmp_path / "two.gif", save_all=True, append_images=moving[1:])
    result = attnflow.generate((model, processor), question.text, images=[tmp_path / "two.gif"])
    assert result.provenance["image_remarks"] == ["two.gif has 2 frames; the first is explained"]


def test_a_result_carries_what_the_model_saw(small: tuple[Any, Any]) -> None:
    model, processor = small
    large = np.kron(PAIR.image(), np.ones((10, 10, 1), np.uint8))
    for result in (
        attnflow.generate((model, processor), PAIR.questions[0].text, images=[large]),
        attnflow.explain((model, processor), PAIR.questions[0].text, images=[large]),
    ):
        (picture,) = carried_pictures(result)
        assert picture.shape == (48, 48, 3)
        assert np.abs(picture.astype(float) - PAIR.image()).mean() < 4


def test_a_model_without_a_vision_tower_takes_no_images() -> None:
    from attnflow.testing import tiny_decoder

    model, tokenizer = tiny_decoder()
    with pytest.raises(attnflow.AttnflowError, match=r"processor|no vision-language model"):
        attnflow.generate((model, tokenizer), "the keys", images=[PAIR.image()])


def test_the_experiment_goes_on_from_its_journal(small: tuple[Any, Any], tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    report = Scenes(scenes=2)(*small, journal=journal)
    lines = journal.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert set(report.table("scenes").rows) > set(CONTENDERS)
    journal.write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
    again = Scenes(scenes=2)(*small, journal=journal)
    assert again.to_csv() == report.to_csv()
    assert json.loads(lines[1])["scores"].keys() == report.table("scenes").rows.keys()


def test_the_default_is_among_the_contenders() -> None:
    assert CONTENDERS[DEFAULT] == IMAGE_METHOD


def test_the_default_points_at_the_true_object(small: tuple[Any, Any]) -> None:
    """By the default alone: what other methods and hidden patches say takes minutes."""
    points = []
    for case in Scenes(scenes=24)._questions(*small, start=0):
        loaded = (case.model, case.processor.tokenizer)
        trace = capture(loaded, case.inputs, methods=[IMAGE_METHOD], answer=case.answer)
        assert trace.prediction is not None
        if trace.prediction.label == case.question.answer.split()[0]:
            points.append(_points_at(_map(IMAGE_METHOD, trace), trace.tokens.images[0], case))
    assert len(points) >= 12
    assert np.mean(points) >= 0.8
