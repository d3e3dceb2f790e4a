"""Runs for other runtimes: the same answers there, and radii that hold there."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lipscale
from lipscale import UserError
from lipscale.data.encode import encode
from lipscale.runs import first_test_samples
from lipscale.runs.export import export_run

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
pytest.importorskip("onnxscript", reason="needs the extra 'onnx'")

NETWORKS = {"mlp": {"model": "mlp", "width": 32}, "convnet": {"model": "convnet", "width": 4}}


@pytest.fixture(scope="module", params=NETWORKS)
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / request.param
    settings = lipscale.Settings(**NETWORKS[request.param], epochs=4, out=folder, device="cpu")
    run = lipscale.train(settings, progress=False)
    return run, first_test_samples(run, 360)[0]


def in_onnxruntime(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session, lambda raw: [torch.from_numpy(found) for found in session.run(None, {"input": np.asarray(raw)})]


def test_onnx_answers_as_the_network_does_and_certifies_no_more(trained, tmp_path):
    run, inputs = trained
    path = tmp_path / "model.onnx"
    about = export_run(run, path, kind="onnx", inputs=inputs)
    session, answers = in_onnxruntime(path)
    assert [output.name for output in session.get_outputs()] == ["logits", "probabilities", "radius"]
    certificate = lipscale.certify(run.net, inputs)
    logits, probabilities, radii = answers(inputs.numpy())
    proven = certificate.radius()
    assert torch.equal(logits.argmax(1), certificate.logits.argmax(1))
    assert torch.allclose(probabilities.double(), certificate.logits.softmax(1), atol=1e-4)
    assert (radii <= proven).all()
    assert (radii >= proven - 2 * about["allowance"] / float(certificate.pairwise[0, 1]) - 1e-5 * proven).all()
    one = torch.cat([answers(inputs[i : i + 1].numpy())[2] for i in range(5)])  # batches of any size
    assert torch.allclose(one, radii[:5], atol=1e-5)
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["classes"]) == list(run.classes)
    assert float(told["bound"]) >= float(told["lipschitz"]) * (1 - 1e-6)


def test_no_input_moved_within_onnxruntimes_radius_changes_its_answer_there(trained, tmp_path):
    """Towards every other class, along the gradient of the difference, in five steps."""
    run, inputs = trained
    path = tmp_path / "model.onnx"
    export_run(run, path, kind="onnx", inputs=inputs)
    _, answers = in_onnxruntime(path)
    logits, _, radii = answers(inputs.numpy())
    chosen, broken, closest = logits.argmax(1), 0, torch.inf
    plain = lipscale.export_plain(run.net)
    for other in range(10):
        moved = inputs.clone()
        for _ in range(5):
            moved.requires_grad_()
            found = plain(moved)
            gap = found.gather(1, chosen[:, None]).squeeze(1) - found[:, other]
            (slope,) = torch.autograd.grad(gap.sum(), moved)
            step = moved.detach() - inputs - 0.4 * radii.view(-1, 1, 1, 1) * unit(slope)
            moved = inputs + 0.999 * radii.view(-1, 1, 1, 1) * unit(step)
        attacked = answers(moved.detach().numpy())[0]
        broken += int((attacked.argmax(1) != chosen).sum())
        rival = attacked.gather(1, chosen[:, None]).squeeze(1) - attacked[:, other]
        before = logits.gather(1, chosen[:, None]).squeeze(1) - logits[:, other]
        closest = min(closest, float((rival / before)[(chosen != other) & (radii > 0)].min()))
    assert broken == 0
    assert closest < 0.9  # the attack does something


def unit(direction):
    return direction / direction.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, 1, 1, 1)


@pytest.mark.filterwarnings("error:Converting a tensor")
def test_torch_export_and_plain_weights(trained, tmp_path):
    run, inputs = trained
    export_run(run, tmp_path / "model.pt2", kind="torch", inputs=inputs)
    extra = {"lipscale.json": ""}
    logits, _, radii = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()(inputs)
    certificate = lipscale.certify(run.net, inputs)
    assert torch.equal(logits.argmax(1), certificate.logits.argmax(1))
    assert (radii <= certificate.radius()).all()
    assert json.loads(extra["lipscale.json"])["unit"] == "pixels in [0, 1]"
    export_run(run, tmp_path / "model.safetensors", kind="plain", inputs=inputs)
    plain = lipscale.export_plain(run.net)
    kept = load_file(tmp_path / "model.safetensors")
    assert kept.keys() == plain.state_dict().keys()
    assert all(torch.equal(kept[name], weight) for name, weight in plain.state_dict().items())


def test_a_table_of_numbers_is_standardised_in_the_file(tmp_path):
    values = np.random.default_rng(0).normal([1e6, 0.0], [10.0, 0.1], (300, 2))
    labels = (values[:, 0] - 1e6 + 100 * values[:, 1] > 0).astype(int)
    np.savez(tmp_path / "table.npz", x=values, y=labels)
    settings = lipscale.Settings(data=str(tmp_path / "table.npz"), epochs=4, out=tmp_path / "run", device="cpu")
    run = lipscale.train(settings, progress=False)
    export_run(run, tmp_path / "table.onnx", kind="onnx", inputs=first_test_samples(run, 60)[0])
    _, answers = in_onnxruntime(tmp_path / "table.onnx")
    assert np.allclose(answers(values)[1].numpy(), run.predict_proba(values), atol=1e-4)
    # raw rows are told to more digits than float32 has: it is not they that the runtime rounds
    radii, proven = answers(values)[2].numpy(), of_rows(run, values).radius().numpy()
    assert (radii <= proven).all()
    assert (radii >= 0.99 * proven - 1e-3).all()


def of_rows(run, values):
    return lipscale.certify(run.net, encode(torch.from_numpy(values), run.preprocessing))


def test_far_rows_have_the_rounding_of_their_own_size(tmp_path):
    """A million deviations out float32 is off by far more than on any row that was tried, and then it overflows."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(300, 2))
    np.savez(tmp_path / "table.npz", x=values, y=(values.sum(1) > 0).astype(int))
    settings = lipscale.Settings(data=str(tmp_path / "table.npz"), epochs=4, out=tmp_path / "run", device="cpu")
    run = lipscale.train(settings, progress=False)
    export_run(run, tmp_path / "table.onnx", kind="onnx", inputs=first_test_samples(run, 60)[0])
    _, answers = in_onnxruntime(tmp_path / "table.onnx")
    ends = 1e6 * np.array([[1.0, -2.0], [2.0, -1.0]])
    for _ in range(50):  # to the border between the classes
        middle = ends.mean(0, keepdims=True)
        ends[int(of_rows(run, middle).logits.argmax())] = middle
    far = ends[0] + 0.1 * rng.normal(size=(2000, 2))
    logits, _, radii = answers(far)
    proven = of_rows(run, far)
    wrong = logits.argmax(1) != proven.logits.argmax(1)
    assert wrong.any()  # in float32
    assert (radii <= proven.radius()).all()
    for size in (1e30, 1e37, 1e39):
        logits, _, radii = answers(size * np.ones((1, 2)))
        assert radii.isfinite().all()


def test_what_cannot_be_exported_is_named(trained, tmp_path):
    run, inputs = trained
    with pytest.raises(UserError, match="expected onnx, torch, plain, got 'tflite'"):
        export_run(run, tmp_path / "model", kind="tflite", inputs=inputs)
    settings = lipscale.Settings(method="standard", epochs=1, out=tmp_path / "plain", device="cpu")
    free = lipscale.train(settings, progress=False)
    with pytest.raises(UserError, match="has no certificate"):
        export_run(free, tmp_path / "model.onnx", kind="onnx", inputs=inputs)
    assert not (tmp_path / "model.onnx").exists()
