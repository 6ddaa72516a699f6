"""What Helm prints after an installation."""

from tests.chart.everything import EVERYTHING
from tests.chart.rendering import at, render


def test_the_notes_name_the_run_and_commands_that_fit_the_release() -> None:
    release = render(release="blue", namespace="there")
    assert "Run math of rollstream 0.1.0, release blue in namespace there." in release.notes
    assert "helm test blue --namespace there" in release.notes
    pod = f"{release.workload('trainer')['metadata']['name']}-0"
    assert f"kubectl --namespace there exec -it {pod} --container trainer -- rollstream status" in release.notes


def test_the_notes_hint_at_what_is_missing_and_only_at_that() -> None:
    bare, full = render().notes, render(EVERYTHING).notes
    for hint in ("Nothing scrapes the metrics", "Without Redis", "Anybody who reaches the brokers"):
        assert hint in bare
        assert hint not in full


def test_the_notes_say_over_how_many_gpus_the_model_is_divided() -> None:
    pod, group = at("generator.gpu.count", 4), at("generator.leaderWorkerSet", {"enabled": True, "size": 3})
    assert "divides the model over" not in render().notes
    assert "divides the model over 4 GPUs; the number must divide its heads" in render(pod).notes
    assert "divides the model over 12 GPUs of 3 pods; the number" in render(pod, group).notes


def test_the_notes_say_which_stages_the_release_has_and_where_the_weights_are() -> None:
    notes = render(at("scorer.enabled", False)).notes
    assert "Scorer        is not part of this release" in notes
    assert "Trainer       runs" in notes
    assert "claim rl-rollstream-weights" in notes
    assert "s3://bucket/weights" in render(EVERYTHING).notes
