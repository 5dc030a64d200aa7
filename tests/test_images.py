"""Photos: read in every form people have them, prepared by the model's own processor, explained,
drawn with a contrast that special tokens do not set.
"""

from __future__ import annotations

import base64
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import attnflow
from attnflow.attribution.patch_maps import PatchMap, contrast, patch_maps
from attnflow.cli import photos
from attnflow.cli.app import main
from attnflow.data import list_photos
from attnflow.errors import FileError, InputError, MethodError, ModelError, UnsupportedModelError
from attnflow.hosts.blocks import outermost_layers
from attnflow.hosts.images import MOST_PIXELS, prepare_images, read_photo
from attnflow.hosts.model import Model
from attnflow.methods import GradientAttention, Raw
from attnflow.show import plots
from attnflow.show.view import view
from attnflow.testing import tiny_encoder, tiny_vision_model
from attnflow.tokens import Grid, Tokens
from attnflow.tokens.patches import patch_names

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def loaded() -> Model:
    return tiny_vision_model()


@pytest.fixture(scope="module")
def folder(loaded: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder as people download it: weights and processor side by side."""
    place = tmp_path_factory.mktemp("vit")
    loaded.module.save_pretrained(place)  # type: ignore[operator]
    loaded.tokenizer.save_pretrained(place)
    return place


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.fromarray(PIXELS).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format=kind, **options)
    return out.getvalue()


def colours(source: Any) -> Any:
    return np.asarray(read_photo(source).image)


# -- reading ----------------------------------------------------------------------------------


def test_one_photo_in_every_form_is_the_same_photo(photo: Path) -> None:
    channels_first = torch.from_numpy(PIXELS).permute(2, 0, 1)
    for source in (
        *(photo, str(photo), photo.read_bytes(), Image.open(photo), PIXELS, PIXELS / 255),
        *(channels_first, channels_first[None], channels_first.float() / 255),
    ):
        np.testing.assert_array_equal(colours(source), PIXELS, err_msg=str(type(source)))


def test_grey_and_two_dimensional_arrays_become_three_equal_channels() -> None:
    grey = PIXELS[..., 0]
    expected = np.repeat(grey[..., None], 3, axis=2)
    for source in (grey, grey[..., None], torch.from_numpy(grey)[None], Image.fromarray(grey)):
        np.testing.assert_array_equal(colours(source), expected)


def test_a_palette_gives_its_colours() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    assert colours(encoded(image)).tolist() == [[[255, 0, 0], [0, 0, 255]]]


def test_transparent_parts_lie_on_white_and_that_is_said() -> None:
    image = Image.new("RGBA", (2, 1), (10, 20, 30, 255))
    image.putpixel((1, 0), (200, 0, 0, 0))
    read = read_photo(encoded(image))
    assert np.asarray(read.image).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    assert "transparent parts" in read.remarks[0]
    opaque = Image.new("RGBA", (2, 1), (10, 20, 30, 255))
    assert read_photo(encoded(opaque)).remarks == ()
    palette = image.convert("P")
    palette.info["transparency"] = palette.getpixel((1, 0))
    assert colours(encoded(palette, transparency=palette.getpixel((1, 0))))[0, 1].tolist() == [
        *(255, 255, 255)
    ]


def test_sixteen_bits_are_rescaled_and_not_cut_off() -> None:
    deep = Image.fromarray(np.array([[0, 257 * 100, 65535]], dtype=np.uint16))
    assert colours(encoded(deep))[0, :, 0].tolist() == [0, 100, 255]
    shares = Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32))
    assert colours(shares)[0, :, 0].tolist() == [0, 128, 255]
    with pytest.raises(InputError, match=r"grey values of .* run from -1 to 3"):
        read_photo(Image.fromarray(np.array([[-1.0, 3.0]], dtype=np.float32)))


def test_cmyk_is_turned_to_red_green_and_blue() -> None:
    inks = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # no cyan, all magenta and yellow: red
    red = colours(encoded(inks, "JPEG", quality=95)).mean(axis=(0, 1))
    assert red[0] > 200
    assert max(red[1:]) < 60


def test_the_camera_says_which_way_is_up(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side: turn by 90° clockwise to show
    Image.fromarray(PIXELS).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(colours(tmp_path / "turned.png"), np.rot90(PIXELS, -1))


def test_of_an_animation_the_first_frame_is_explained() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    read = read_photo(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert np.asarray(read.image)[0, 0].tolist() == [255, 0, 0]
    assert "has 2 frames; the first is explained" in read.remarks[0]


def test_bad_images_get_one_sentence(tmp_path: Path, photo: Path) -> None:
    text = tmp_path / "notes.jpg"
    text.write_text("no image at all")
    cut_off = tmp_path / "cut.png"
    cut_off.write_bytes(photo.read_bytes()[:400])
    jpeg = tmp_path / "cut.jpg"
    jpeg.write_bytes(encoded(Image.fromarray(PIXELS), "JPEG")[:500])
    empty = tmp_path / "empty.png"
    empty.write_bytes(b"")
    for path, sentence in (
        (text, "'notes.jpg' is not an image that can be read"),
        (empty, "'empty.png' is not an image that can be read"),
        (cut_off, "'cut.png' is broken or cut off: "),
        (jpeg, "'cut.jpg' is broken or cut off: "),
    ):
        with pytest.raises(InputError, match=sentence) as error:
            read_photo(path)
        assert "\n" not in str(error.value)
    with pytest.raises(FileError, match=r"There is no image .*nowhere.png.* No such file"):
        read_photo(tmp_path / "nowhere.png")
    with pytest.raises(InputError, match="is a folder; name an image in it"):
        read_photo(tmp_path)
    with pytest.raises(InputError, match=r"got 5 \(int\)"):
        read_photo(5)


def test_huge_images_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    side = int(MOST_PIXELS**0.5) + 100
    bomb = tmp_path / "huge.png"
    Image.new("1", (side, side)).save(bomb)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=rf"{side:,} × {side:,} pixels, more than the"):
            read_photo(bomb)


def test_files_of_many_bytes_are_not_even_read(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnflow.hosts.images._LARGEST_FILE", 100)
    with pytest.raises(InputError, match="bytes; images of up to 100 are read"):
        read_photo(photo)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.full((4, 4, 3), -1.0), "prepared already are passed by name"),
        (np.full((4, 4, 3), np.nan), "prepared already are passed by name"),
        (np.full((4, 4, 3), 300), "run from 300 to 300"),
        (np.zeros((4, 4, 4), np.uint8), "has four channels"),
        (np.zeros((7, 5, 6), np.uint8), "1 or 3 channels"),
        (np.zeros((0, 5, 3), np.uint8), r"got shape \(0, 5, 3\)"),
        (np.zeros((2, 3, 4, 5, 6), np.uint8), r"got shape \(2, 3, 4, 5, 6\)"),
        (np.full((2, 2), "a"), "of numbers"),
    ],
)
def test_arrays_that_are_no_image_are_refused(array: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_photo(array)


def test_whole_numbers_may_come_as_floats() -> None:
    np.testing.assert_array_equal(colours(PIXELS.astype(np.float32)), PIXELS)


def test_a_folder_lists_its_images_by_name(tmp_path: Path, photo: Path) -> None:
    (tmp_path / "b.JPG").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    assert [path.name for path in list_photos(tmp_path)] == ["b.JPG", "photo.png"]
    (tmp_path / "inner").mkdir()
    with pytest.raises(InputError, match="There is no image in"):
        list_photos(tmp_path / "inner")


# -- preparing --------------------------------------------------------------------------------


def test_pixels_are_those_of_the_models_own_processor(folder: Path, loaded: Model) -> None:
    model = attnflow.load(folder).module
    prepared = prepare_images(model, [PIXELS])[0]
    expected = loaded.tokenizer(images=Image.fromarray(PIXELS), return_tensors="pt")
    assert torch.equal(prepared.inputs["pixel_values"], expected["pixel_values"])
    squeezed = np.asarray(Image.fromarray(PIXELS).resize((32, 32), Image.Resampling.BILINEAR))
    assert np.abs(prepared.picture.astype(int) - squeezed).max() <= 1  # undone to what was seen


def test_a_cropping_processor_shows_what_the_model_saw(loaded: Model) -> None:
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    wide = np.zeros((32, 96, 3), np.uint8)
    wide[:, 32:64] = (200, 100, 50)  # only the middle third is seen
    picture = prepare_images((loaded.module, processor), [wide])[0].picture
    assert np.abs(picture.astype(int) - (200, 100, 50)).max() <= 1


def test_every_form_gives_the_same_result_and_class_names(folder: Path, photo: Path) -> None:
    first = attnflow.explain(folder, photo)
    assert first.prediction is not None
    assert first.prediction.label in ("cat", "cup", "coin")
    assert first.sources.texts[0] == "[CLS]"
    for source in (str(photo), Image.open(photo), PIXELS, photo.read_bytes()):
        again = attnflow.explain(folder, source)
        np.testing.assert_array_equal(again.values, first.values)
    assert first.provenance["image"] == "photo.png"


def test_prepared_pixels_and_a_photo_agree(loaded: Model) -> None:
    inputs = dict(loaded.tokenizer(images=Image.fromarray(PIXELS), return_tensors="pt"))
    prepared = attnflow.explain(loaded.module, inputs, "rollout")
    photo = attnflow.explain((loaded.module, loaded.tokenizer), PIXELS, "rollout")
    np.testing.assert_array_equal(prepared.values, photo.values)
    assert "images" not in prepared.provenance


def test_the_result_carries_the_picture_reduced(loaded: Model, tmp_path: Path) -> None:
    result = attnflow.explain((loaded.module, loaded.tokenizer), PIXELS)
    address = result.provenance["images"][0]
    picture = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    assert picture.size == (32, 32)
    result.save(tmp_path / "result.json")
    again = attnflow.Attribution.load(tmp_path / "result.json")
    assert again.provenance["images"] == [address]
    assert result.to_html().count(address) == 1
    (tmp_path / "page.json").write_text(json.dumps(view(result)), encoding="utf-8")
    back = attnflow.Attribution.load(tmp_path / "page.json")
    assert back.provenance["images"] == [address]
    assert address in result._repr_html_()
    assert "position:absolute;inset:0;" in result._repr_html_()  # the map lies over it


def test_models_without_a_processor_or_without_eyes_say_so(loaded: Model) -> None:
    with pytest.raises(ModelError, match=r"was not loaded from a folder.* pass one: processor="):
        attnflow.explain(loaded.module, PIXELS)
    model, tokenizer = tiny_encoder()
    with pytest.raises(InputError, match="BertForMaskedLM reads no images"):
        attnflow.explain((model, tokenizer), PIXELS)
    with pytest.raises(InputError, match="reads text; got the path"):
        attnflow.explain((model, tokenizer), Path("photo.png"))
    with pytest.raises(InputError, match="got 5"):
        attnflow.explain(loaded.module, 5)  # type: ignore[arg-type]
    with pytest.raises(FileError, match="There is no image 'a cat on a mat'"):
        attnflow.explain((loaded.module, loaded.tokenizer), "a cat on a mat")


def test_a_processor_that_fails_is_told_about_the_photo(loaded: Model) -> None:
    def broken(image: Any) -> Any:
        raise RuntimeError("no room")

    with pytest.raises(InputError, match=r"cannot prepare 'array' \(30 × 20 pixels\).* no room"):
        attnflow.explain(attnflow.load(loaded.module, processor=broken), PIXELS)
    with pytest.raises(ModelError, match="gives pixel_values"):
        attnflow.explain(attnflow.load(loaded.module, processor=lambda _: torch.zeros(2)), PIXELS)


# -- maps -------------------------------------------------------------------------------------


def patches_result(values: Any, *, first: float = 0.9) -> attnflow.Attribution:
    """One target, a class token that holds `first`, and these patches."""
    rows, columns = values.shape
    grid = Grid(rows, columns, 1, 4 * rows, 4 * columns)
    tokens = Tokens(patch_names(grid, ("[CLS]",)), grid=grid)
    row = np.concatenate([[first], values.ravel()])[None, None]
    return attnflow.Attribution(row, (1,), tokens.select([0]), tokens, Raw())


def test_special_tokens_never_set_the_scale() -> None:
    values = RNG.random((5, 5))
    small, large = (patches_result(values, first=first) for first in (0.0, 1e6))
    for scale in ("percentiles", "full"):
        assert contrast(patch_maps(small), scale) == contrast(patch_maps(large), scale)
    ends = contrast(patch_maps(large))
    assert ends.low == pytest.approx(np.percentile(values, 5))
    assert ends.high == pytest.approx(np.percentile(values, 99))
    axes = plots.image_overlay(large, np.zeros((20, 20)))
    assert axes.images[1].get_clim() == (ends.low, ends.high)
    bars = [other for other in axes.figure.axes if other is not axes]  # type: ignore[union-attr]
    assert len(bars) == 1  # the colour bar


def test_a_scale_may_be_full_two_values_or_is_refused() -> None:
    result = patches_result(np.array([[0.1, 0.2], [0.3, 0.4]]))
    maps = patch_maps(result)
    assert contrast(maps, "full")[:2] == (0.0, 0.4)
    assert contrast(maps, (0.1, 0.3))[:2] == (0.1, 0.3)
    signed = patch_maps(patches_result(np.array([[-0.5, 0.2], [0.3, 0.4]])))
    assert contrast(signed, "full") == (-0.5, 0.5, True)
    assert contrast(signed, (0.0, 0.2)) == (-0.2, 0.2, True)
    for scale in ("loud", (0.3, 0.1), (1, 2, 3), None):
        with pytest.raises(InputError, match=r"scale=.*'percentiles', 'full', or two values"):
            contrast(maps, scale)  # type: ignore[arg-type]
    flat = contrast([PatchMap(Grid(1, 2, 0, 1, 2), np.array([[0.2, 0.2]]))])
    assert flat.high > flat.low
    assert flat.shares(np.array([0.2])).tolist() == [0.0]


def test_an_overlay_takes_the_picture_from_the_result(loaded: Model) -> None:
    result = attnflow.explain((loaded.module, loaded.tokenizer), PIXELS)
    under = plots.image_overlay(result).images[0].get_array()
    picture = prepare_images((loaded.module, loaded.tokenizer), [PIXELS])[0].picture
    assert np.abs(np.asarray(under) * 255 - picture).mean() < 12  # JPEG blurs colours
    without = patches_result(np.ones((2, 2)))
    with pytest.raises(InputError, match="carries no picture; pass the one the model saw"):
        plots.image_overlay(without)
    with pytest.raises(InputError, match="index=1: there are 1 images"):
        plots.image_overlay(result, index=1)


def test_a_figure_has_a_panel_for_each_method_in_full_rows() -> None:
    results = [patches_result(RNG.random((3, 3))) for _ in range(6)]
    picture = np.zeros((12, 12))
    figure = plots.overlay_figure(results, picture, names=list("abcdef"), heading="six")
    panels = [axes for axes in figure.axes if len(axes.images) == 2]
    assert [axes.get_title() for axes in panels] == list("abcdef")
    assert len({round(axes.get_position().y0, 2) for axes in panels}) == 2  # three in each row
    with pytest.raises(InputError, match="6 results but 1 names"):
        plots.overlay_figure(results, picture, names=["a"])
    with pytest.raises(InputError, match="at least one result"):
        plots.overlay_figure([])


# -- the command line -------------------------------------------------------------------------


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Run a command; its exit status, and all it said as one line."""

    def command(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["attnflow", *map(str, arguments)])
        try:
            status = main()
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        return int(status or 0), " ".join(f"{captured.out} {captured.err}".split())

    return command


Run = Callable[..., tuple[int, str]]


def width_of(path: Path) -> int:
    with Image.open(path) as image:
        return image.size[0]


def test_a_photo_in_one_command(run: Run, folder: Path, photo: Path, tmp_path: Path) -> None:
    expected = attnflow.explain(folder, photo)
    status, words = run("explain", "--model", folder, photo)
    assert status == 0, words
    assert f"photo.png: the model says {expected.prediction}." in words
    assert "draws most on the" in words
    status, words = run("explain", "--model", folder, photo, "--output", tmp_path / "overlay.png")
    assert status == 0, words
    assert width_of(tmp_path / "overlay.png") > 200
    status, words = run("report", "--model", folder, photo, "--output", tmp_path / "report.html")
    assert status == 0, words
    assert expected.provenance["images"][0] in (tmp_path / "report.html").read_text("utf-8")


def test_methods_side_by_side(run: Run, folder: Path, photo: Path, tmp_path: Path) -> None:
    many, one = tmp_path / "grid.png", tmp_path / "one.png"
    options = ("--figure", "methods", "--output", many)
    assert run("explain", "--model", folder, photo, *options)[0] == 0
    assert run("explain", "--model", folder, photo, "--output", one)[0] == 0
    assert width_of(many) > 2 * width_of(one)
    model = attnflow.load(folder)
    drawn = photos._explain(model, photo, photos._SIDE_BY_SIDE, {})
    assert drawn[0].method == attnflow.explain(model, photo).method
    alone = photos._explain(model, photo, (None, drawn[0].method), {})
    assert len(alone) == 1


def test_a_folder_of_photos_and_what_cannot_be_read(
    run: Run, folder: Path, photo: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.jpg").write_text("no image")
    out = tmp_path / "maps"
    status, words = run("explain", "--model", folder, tmp_path, "--output", out)
    assert status == 0, words
    assert sorted(path.name for path in out.iterdir()) == ["contact-sheet.png", "photo.png.png"]
    status, words = run("explain", "--model", folder, tmp_path, "--output", tmp_path / "all.pdf")
    assert (tmp_path / "all.pdf").stat().st_size > 1000
    status, words = run("explain", "--model", folder, tmp_path, "--output", tmp_path / "all.html")
    assert "name a folder, or a picture" in words
    status, words = run("explain", "--model", folder, tmp_path, "--output", out)
    assert "'broken.jpg' is not an image" in words
    photo.unlink()
    status, words = run("explain", "--model", folder, tmp_path)
    assert status == 2
    assert "None of the 1 images" in words


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--level", "word"], "--level is about text"),
        (["--cut", "3"], "--cut is about text"),
        (["--figure", "pairs", "--output", "x.png"], "of an image it is overlay or methods"),
        (["--figure", "overlay"], "needs a file"),
        (["--json", "--output", "x.png"], "choose one"),
        (["--figure", "methods", "--method", "raw", "--output", "x.png"], "leave out --method"),
        (["--targets", "0", "--targets", "1"], "A map shows one target"),
    ],
)
def test_options_that_photos_do_not_take(
    run: Run, photo: Path, options: list[str], sentence: str
) -> None:
    status, words = run("explain", "--model", "./vit", photo, *options)
    assert status == 2
    assert sentence in words


def test_a_photo_needs_a_model_that_sees(run: Run, photo: Path) -> None:
    assert "Name a vision model" in run("explain", photo)[1]
    assert (
        "reads text. Give a text, or a vision model."
        in (run("explain", "--model", "verb-number", photo)[1])
    )
    assert "this command takes text. Photos: attnflow explain" in run("generate", photo)[1]


# -- taken apart ------------------------------------------------------------------------------


def vision_model(name: str) -> Any:
    import transformers

    config = getattr(transformers, name.replace("ForImageClassification", "Config"))(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        mlp_ratio=2,
        image_size=16,
        patch_size=4,
        initializer_range=0.5,
        layerscale_value=0.3,
    )
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():  # scales that differ from place to place
        for part, parameter in model.named_parameters():
            if "layer_scale" in part or part.endswith("bias"):
                parameter.copy_(torch.rand_like(parameter))
    return model


FAMILIES = [
    ("ViTForImageClassification", "layernorm_after"),
    ("DeiTForImageClassification", "layernorm_after"),
    ("Dinov2ForImageClassification", "norm2"),
    ("Dinov2WithRegistersForImageClassification", "norm2"),
]


def plain_alti(block: Any, inputs: Any, weights: Any) -> tuple[Any, torch.Tensor]:
    """Ferrando et al.'s contributions of one layer, in loops over heads, targets and sources; and
    what attention and residual sum to.
    """
    attention = block.attention
    scale = block.layer_scale1.lambda1 if hasattr(block, "layer_scale1") else 1.0
    heads, length = weights.shape[:2]
    first = block.layernorm_before if hasattr(block, "layernorm_before") else block.norm1
    values = attention.v_proj(first(inputs))
    width = values.shape[-1] // heads
    contributions, outputs = np.zeros((length, length)), []
    for i in range(length):
        vectors = []
        for j in range(length):
            mixed = torch.zeros(values.shape[-1])
            for head in range(heads):
                part = slice(head * width, (head + 1) * width)
                mixed[part] = weights[head, i, j] * values[j, part]
            vector = (attention.o_proj.weight @ mixed) * scale
            vectors.append(vector + inputs[i] if i == j else vector)
        output = torch.stack(vectors).sum(0) + attention.o_proj.bias * scale
        outputs.append(output)
        for j, vector in enumerate(vectors):
            near = output.abs().sum() - (output - vector).abs().sum()
            contributions[i, j] = max(0.0, float(near))
    return contributions, torch.stack(outputs)


@pytest.mark.parametrize(("name", "following"), FAMILIES)
def test_alti_of_vision_models_equals_plain_loops(name: str, following: str) -> None:
    model = vision_model(name)
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    trace = attnflow.capture(model, {"pixel_values": pixels}, record=("alti", "norms-residual"))
    base = model.base_model
    blocks = base.layers if hasattr(base, "layers") else base.encoder.layer
    inputs: list[torch.Tensor] = []
    afters: list[torch.Tensor] = []
    for block in blocks:
        block.register_forward_pre_hook(
            lambda _, given, options: inputs.append(
                (given[0] if given else options["hidden_states"])[0]
            ),
            with_kwargs=True,
        )
        getattr(block, following).register_forward_hook(
            lambda _, given, __: afters.append(given[0][0])
        )
    with torch.no_grad():
        model(pixel_values=pixels)
        for k, block in enumerate(blocks):
            weights = torch.from_numpy(np.array(trace.weights[k]))
            expected, output = plain_alti(block, inputs[k], weights)
            tolerance = 2e-6 * float(expected.max())  # a small difference of large L1 norms
            np.testing.assert_allclose(trace.measured["alti"][k], expected, atol=tolerance)
            # What the loops sum to is what the block's next part is really given.
            torch.testing.assert_close(output, afters[k], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "_"), FAMILIES)
def test_the_norm_family_explains_vision_models(name: str, _: str) -> None:
    model = vision_model(name)
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    for method in ("alti", "norm-rollout", "rollout", "gradient-attention"):
        result = attnflow.explain(model, {"pixel_values": pixels}, method)
        assert result.image(target=result.targets.positions[0]).shape == (16, 16)
    with pytest.raises(UnsupportedModelError, match="normalises before attention"):
        attnflow.explain(model, {"pixel_values": pixels}, "rollout:matrices=norms-layernorm")


def test_the_default_of_image_classifiers_is_what_hidden_patches_chose(loaded: Model) -> None:
    from transformers import Dinov2Config, Dinov2Model

    result = attnflow.explain((loaded.module, loaded.tokenizer), PIXELS)
    assert result.method == GradientAttention(score="logit", lens=True)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bare = Dinov2Model(Dinov2Config(**sizes, image_size=16, patch_size=8)).eval()
    pixels = {"pixel_values": torch.zeros(1, 3, 16, 16)}
    assert attnflow.explain(bare, pixels).method.name == "rollout"  # no class, no gradient


def test_a_patch_counts_by_the_answer_that_the_head_reads_there(loaded: Model) -> None:
    method = GradientAttention(score="logit", lens=True)
    net: Any = loaded.module
    pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    entered: list[torch.Tensor] = []
    hook = outermost_layers(net)[-1].register_forward_pre_hook(lambda _, a: entered.append(a[0]))
    with torch.no_grad():
        net(pixel_values=pixels)
    hook.remove()
    with torch.no_grad():
        heads = net.classifier(net.vit.layernorm(entered[0]))[0].softmax(dim=-1)
    for answer in (0, 1):
        inputs = {"pixel_values": pixels}
        trace = attnflow.capture(loaded, inputs, methods=[method], answer=answer)
        plain = GradientAttention(score="logit")(trace, targets=[0], layers=-1).values[0, 0]
        read = trace.measured["lens"][-1]
        assert read == pytest.approx(heads[:, answer].numpy(), abs=1e-6)
        grid = read[1:].reshape(4, 4)
        around = np.empty((4, 4))
        for row, column in np.ndindex(4, 4):
            near = [(min(max(row + r, 0), 3), min(max(column + c, 0), 3))
                    for r in (-1, 0, 1) for c in (-1, 0, 1)]  # fmt: skip
            around[row, column] = sum(grid[place] for place in near) / 9
        values = method(trace, targets=[0], layers=-1).values[0, 0]
        assert values[1:] == pytest.approx(plain[1:] * around.ravel())
    with pytest.raises(UnsupportedModelError, match="lens=true reads the patches"):
        attnflow.explain(tiny_encoder(head="SequenceClassification"), "the key", method)
    with pytest.raises(MethodError, match="leave one out"):
        GradientAttention(lens=True, balanced=True)
