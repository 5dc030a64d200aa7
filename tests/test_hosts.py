"""timm, plain torch, plug-ins, and the checks themselves."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnflow
from attnflow import GradientRollout
from attnflow.errors import FileError, TokensError, UnsupportedModelError
from attnflow.hosts import model as adapters
from attnflow.hosts.adapter import Adapter
from attnflow.hosts.check import check_model
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.transformers_classes import is_cache, is_pretrained
from attnflow.testing import check_adapter, tiny_encoder

_DECLARED: list[torch.library.Library] = []  # operators live as long as their library object

# -- timm ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def timm() -> Any:
    """timm from the environment, or from the folder that `make` keeps it in.

    It is kept apart because its torchvision breaks transformers where torchvision's compiled
    operators are missing; two of them must be declared before it can be imported at all.
    """
    apart = Path(sys.prefix) / "timm"
    if importlib.util.find_spec("timm") is None and apart.is_dir():
        _DECLARED.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            _DECLARED[-1].define(
                f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        sys.path.append(str(apart))
    return pytest.importorskip("timm")


def vit(timm: Any, name: str = "vit_tiny_patch16_224", **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 4, "depth": 2}
    model = timm.create_model(name, pretrained=False, num_classes=7, **{**sizes, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6)
    return model.eval()


def noise(height: int = 32, width: int = 32) -> Tensor:
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))


TIMM = [
    ("vit_tiny_patch16_224", {}, ("[CLS]",)),
    ("deit_tiny_distilled_patch16_224", {}, ("[CLS]", "[DIST]")),
    ("vit_small_patch14_reg4_dinov2", {}, ("[CLS]", "[REG1]", "[REG2]", "[REG3]", "[REG4]")),
    ("vit_base_patch16_siglip_224", {}, ()),
    ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}, ()),
]


@pytest.mark.parametrize(("name", "options", "prefix"), TIMM)
def test_timm_weights_equal_a_plain_softmax(
    timm: Any, name: str, options: dict[str, Any], prefix: tuple[str, ...]
) -> None:
    model = vit(timm, name, **options)
    expected: list[np.ndarray] = []

    def by_hand(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Queries and keys from the fused projection, then the textbook formula."""
        batch, n, _ = inputs[0].shape
        qkv = module.qkv(inputs[0]).reshape(batch, n, 3, module.num_heads, -1)
        query, key, _ = qkv.permute(2, 0, 3, 1, 4)
        scores = module.q_norm(query) @ module.k_norm(key).transpose(-1, -2) * module.scale
        expected.append(scores.softmax(-1)[0].detach().numpy())

    handles = [block.attn.register_forward_hook(by_hand) for block in model.blocks]
    trace = attnflow.capture(model, {"x": noise()})
    for handle in handles:
        handle.remove()
    assert np.allclose(trace.weights, np.stack(expected), rtol=0, atol=1e-6)
    assert trace.weights.std() * trace.length > 0.1
    assert trace.tokens.texts[: len(prefix) + 1] == (*prefix, "patch 0,0")
    assert attnflow.Rollout()(trace).image(target=0).shape == (32, 32)
    check_adapter(model, {"x": noise()})


def test_timm_images_need_not_be_square(timm: Any) -> None:
    model = vit(timm, img_size=(24, 40))
    trace = attnflow.capture(model, {"x": noise(24, 40)})
    assert trace.tokens.grid is not None
    assert (trace.tokens.grid.rows, trace.tokens.grid.columns) == (3, 5)
    assert trace.prediction is not None
    assert trace.prediction.label.startswith("class ")


def test_timm_flags_come_back_even_when_the_pass_fails(
    timm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vit(timm)
    model.blocks[0].attn.fused_attn = False
    before = [block.attn.fused_attn for block in model.blocks]
    assert before == [False, True]

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model.blocks[1], "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attnflow.capture(model, {"x": noise()})
    assert [block.attn.fused_attn for block in model.blocks] == before
    assert not any(module._forward_hooks for module in model.modules())


def test_timm_windows_are_refused_by_name(timm: Any) -> None:
    model = timm.create_model("swin_tiny_patch4_window7_224", pretrained=False)
    with pytest.raises(
        UnsupportedModelError, match=r"SwinTransformer cannot be explained.*windows"
    ):
        attnflow.capture(model, {"x": noise(224, 224)})


def test_timm_takes_pixels(timm: Any) -> None:
    with pytest.raises(TokensError, match=r"one tensor \(batch, channels, height, width\)"):
        attnflow.capture(vit(timm), {"x": torch.zeros(3)})
    with pytest.raises(FileError, match="There is no image 'a cat'"):
        attnflow.capture(vit(timm), "a cat")


def test_a_corpus_of_images_takes_timm_as_explain_does(timm: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("pyarrow")
    model, rng = vit(timm), np.random.default_rng(0)
    photos = [tmp_path / f"{k}.png" for k in range(3)]
    for photo in photos:
        image.fromarray(rng.integers(0, 255, (40, 48, 3), dtype=np.uint8)).save(photo)
    settings = attnflow.corpus.Settings(values=True)
    result = attnflow.corpus.run(model, photos, tmp_path / "out", settings=settings)
    rows = result.to_arrow().to_pylist()
    assert [row["error"] for row in rows] == [None] * 3
    for row, photo in zip(rows, photos, strict=True):
        alone = attnflow.explain(model, photo, layers=-1)
        assert row["method"] == alone.method.label
        assert row["prediction"] == alone.prediction.label
        assert row["values"] == pytest.approx(alone.values[0, 0].tolist(), rel=1e-4, abs=1e-7)


def test_timm_gradients_equal_finite_differences(timm: Any) -> None:
    """Nudge one weight where it is dropped out and see how far the score moves."""
    model = vit(timm).double()
    pixels = noise().double()
    trace = attnflow.capture(model, {"x": pixels}, methods=[GradientRollout(score="logit")])
    assert trace.gradients is not None
    for block in model.blocks:
        block.attn.fused_attn = False
    for layer, head, query, key in ((0, 1, 3, 2), (1, 0, 0, 4), (1, 3, 0, 0)):

        def moved(module: Any, given: Any, output: Tensor, at: Any = (head, query, key)) -> Tensor:
            changed = output.clone()
            changed[0, *at] += 1e-5
            return changed

        with torch.no_grad():
            before = model(pixels)[0]
            handle = model.blocks[layer].attn.attn_drop.register_forward_hook(moved)
            after = model(pixels)[0]
            handle.remove()
        slope = float((after - before)[before.argmax()]) / 1e-5
        assert abs(slope) > 1e-6
        assert trace.gradients[layer, head, query, key] == pytest.approx(slope, rel=1e-3)
    with pytest.raises(UnsupportedModelError, match="adapter for timm, which does not measure"):
        attnflow.capture(model, {"x": pixels}, record=("value-zeroing",))


# -- plain torch --------------------------------------------------------------------------------


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


def embeddings() -> dict[str, Tensor]:
    return {"src": 4 * torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0))}


def test_torch_weights_equal_the_modules_own() -> None:
    model = encoder()
    trace = attnflow.capture(model, embeddings())
    hidden = embeddings()["src"]
    with torch.no_grad():
        for layer, ours in zip(model.layers, trace.weights, strict=True):
            _, theirs = layer.self_attn(hidden, hidden, hidden, average_attn_weights=False)
            assert np.allclose(ours, theirs[0].numpy(), rtol=0, atol=1e-6)
            hidden = layer(hidden)
    assert trace.tokens[0] == "position 0"
    check_adapter(model, embeddings())


def test_torch_batches_keep_examples_apart() -> None:
    both = torch.cat([embeddings()["src"], -embeddings()["src"]])
    traces = attnflow.capture(encoder(), [{"src": both}])
    alone = attnflow.capture(encoder(), {"src": both[1:]})
    assert np.allclose(traces[1].weights, alone.weights, rtol=0, atol=1e-6)


def test_torch_cross_attention_is_refused() -> None:
    model = nn.Transformer(32, 4, 1, 1, 48, batch_first=True)
    inputs = {"src": torch.randn(1, 6, 32), "tgt": torch.randn(1, 4, 32)}
    with pytest.raises(UnsupportedModelError, match="from 4 queries to 6 keys"):
        attnflow.capture(model, inputs)
    assert not any(module._forward_hooks for module in model.modules())


# -- plug-ins -----------------------------------------------------------------------------------


class OneHead(nn.Module):
    """A host of somebody else: one matrix of scores."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor, watch: Any = lambda weights: weights) -> Tensor:
        return watch(self.scores.softmax(dim=-1)[None, None])[0, 0] @ x[0]


class OneHeadAdapter(Adapter):
    """The example of docs/models.md."""

    name = "one head"

    def recognises(self, model: nn.Module) -> bool:
        return isinstance(model, OneHead)

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        def watch(weights: Tensor) -> Tensor:
            recorder.add(weights)
            return torch.full_like(weights, 1 / weights.shape[-1]) if recorder.disturb else weights

        return model(**inputs, watch=watch)


@pytest.fixture
def _plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    point = EntryPoint("one-head", "test_hosts:OneHeadAdapter", adapters.ENTRY_POINTS)
    monkeypatch.setattr(adapters, "entry_points", lambda **_: [point])
    adapters.adapters.cache_clear()
    yield
    adapters.adapters.cache_clear()


@pytest.mark.usefixtures("_plugged")
def test_an_entry_point_adds_a_host() -> None:
    inputs = {"x": torch.randn(1, 4, 8)}
    trace = attnflow.capture(OneHead(), inputs)
    assert trace.weights.shape == (1, 1, 4, 4)
    check_adapter(OneHead(), inputs)
    assert adapters.adapters()[0].name == "one head"


def test_the_example_in_the_docs_is_the_tested_one() -> None:
    docs = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    source = Path(__file__).read_text(encoding="utf-8")
    start = source.index("class OneHeadAdapter(Adapter):")
    body = source[start : source.index("@pytest.fixture\ndef _plugged")]
    code = [line for line in body.splitlines() if '"""' not in line and line.strip()]
    assert all(line in docs for line in code)


# -- the checks catch what is wrong -------------------------------------------------------------


class Blind(OneHeadAdapter):
    """Shows weights that the model does not use."""

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        recorder.add(torch.eye(4)[None, None])
        return model(**inputs)


class Meddling(OneHeadAdapter):
    """Changes what the model computes."""

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        return super().run(model, {"x": inputs["x"] * 1.5}, recorder)


class Careless(OneHeadAdapter):
    """Leaves a hook behind."""

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        model.register_forward_hook(lambda *_: None)
        return super().run(model, inputs, recorder)


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        (Blind, "other attention gives another output"),
        (Meddling, "the output is the same without capture"),
        (Careless, "the model was given back unchanged"),
    ],
)
def test_a_wrong_adapter_fails_its_check(
    monkeypatch: pytest.MonkeyPatch, adapter: type[Adapter], said: str
) -> None:
    monkeypatch.setattr("attnflow.hosts.model.adapter_for", lambda _: adapter())
    with pytest.raises(AssertionError, match=f"not so: {said}"):
        check_adapter(OneHead(), {"x": torch.randn(1, 4, 8)})


def test_a_dropped_mask_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without our mask function transformers would hand us no mask at all."""
    from transformers.masking_utils import AttentionMaskInterface

    from attnflow.hosts.transformers import attention
    from families import FAMILIES

    llama = next(family for family in FAMILIES if family.name == "Llama")
    mapping = dict(AttentionMaskInterface._global_mapping)
    del mapping[attention._NAME]
    monkeypatch.setattr(AttentionMaskInterface, "_global_mapping", mapping)
    checks = {check.name: check.passed for check in check_model(llama.build(), llama.inputs())}
    assert checks["the mask was kept"] is False
    assert checks["the output is the same without capture"] is False


def test_check_reports_instead_of_raising() -> None:
    loaded = tiny_encoder()
    passed = check_model(loaded, "the key to the cabinets")
    assert all(check.passed for check in passed)
    (refused,) = check_model(nn.Linear(2, 2), "text")
    assert refused.passed is False
    assert "No adapter recognises" in refused.detail


def test_while_another_thread_imports_transformers_nothing_is_of_its_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its modules are there then, and the classes in them are not."""
    for name in ("modeling_utils", "cache_utils"):
        monkeypatch.setitem(sys.modules, f"transformers.{name}", ModuleType(name))
    assert not is_pretrained(nn.Linear(2, 2))
    assert not is_cache(None)
