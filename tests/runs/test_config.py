"""Settings: precedence, round trip, and errors that name the place and the nearest valid key."""

import pytest

from lipscale.errors import UserError
from lipscale.experiments import RECIPES
from lipscale.runs.settings_file import as_yaml, read_settings
from lipscale.settings import Settings, replace


def test_the_defaults_are_the_papers_where_it_says():
    s = Settings()
    assert (s.offset, s.window, s.tolerance, s.calibration_fraction) == (0.0, 30, 0.001, None)
    assert s.phase2_start == "continue"


def test_the_recipes_are_the_papers_runs():
    recipe = RECIPES["list-cifar10"]()
    assert (recipe.data, recipe.model, recipe.width, recipe.phase2_epochs) == ("cifar10", "resnet18", 64, 100)
    assert replace(recipe, offset=3.0).offset == 3.0
    assert RECIPES["fixed-cifar100"]().method == "fixed"


def test_yaml_round_trip(tmp_path):
    settings = replace(Settings(), data="cifar10", offset=3, out=tmp_path / "x", epsilons=(0.1, 36 / 255))
    (tmp_path / "s.yaml").write_text(as_yaml(settings))
    values, _ = read_settings(tmp_path / "s.yaml")
    assert Settings.checked(values) == settings


@pytest.mark.parametrize(("given", "expected"), [("0.1,36/255", (0.1, 36 / 255)), (0.5, (0.5,)), (["1/4"], (0.25,))])
def test_epsilons_may_be_fractions(given, expected):
    assert Settings.checked({"epsilons": given}).epsilons == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nepoch: 5\n", r"s.yaml, line 2: unknown setting 'epoch'; did you mean 'epochs'\?"),
        ("model: resnet\n", r"s.yaml, line 1: model: .*did you mean 'resnet18'\?, got 'resnet'"),
        ("\n\noffset: -1\n", "s.yaml, line 3: offset: .*greater than or equal to 0, got -1"),
        ("epochs: many\n", "line 1: epochs: .*integer.*got 'many'"),
        ("lipschitz: .inf\n", "line 1: lipschitz: .*finite"),
        ("epsilons: [0.1, x]\n", "line 1: epsilons"),
        ("epsilons: []\n", "line 1: epsilons"),
        ("epsilons: null\n", "line 1: epsilons"),
        ("- 1\n", "expected lines like"),
        ("1: 2\n", "line 1: unknown setting .1."),
        ("a: [\n", "as settings in YAML"),
        ("!!python/object/apply:os.system ['true']\n", "as settings in YAML"),
    ],
)
def test_errors_name_the_place(tmp_path, text, message):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        values, place = read_settings(path)
        Settings.checked(values, place=place)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="none.yaml"):
        read_settings(tmp_path / "none.yaml")
