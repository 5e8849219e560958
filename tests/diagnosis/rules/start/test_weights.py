"""start.weights fires for pickled weights, and reports lines that read the same file; it ignores safetensors."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import found, line

FIRST = line("weights", 2, 'keys = list(torch.load(path, weights_only=False)["model"])', at=40)
SECOND = line("weights", 2, "state = torch.load(path)", at=41)
THIRD = line("weights", 1, "again = torch.load(path, mmap=True)", at=43)
OTHER = line("weights", 2, "optimizer = torch.load(other)", at=42)


def test_two_reads_of_one_file_are_named_with_both_lines() -> None:
    finding = found(FIRST, SECOND, OTHER)["start.weights"]
    assert "lines 40 and 41 read the same file" in finding.title
    assert finding.remedy is not None
    assert finding.remedy.text.startswith("Read the file once")


def test_all_lines_that_read_it_are_told() -> None:
    assert "lines 40 and 41 and 43 read the same file" in found(FIRST, SECOND, THIRD)["start.weights"].title


def test_reads_of_two_files_are_pickled_weights() -> None:
    finding = found(FIRST, OTHER)["start.weights"]
    assert "the same file" not in finding.title
    assert finding.remedy is not None
    assert "mmap=True" in finding.remedy.text


def test_safetensors_are_what_the_remedy_asks_for() -> None:
    assert found(line("weights", 4, "state = load_file(path)", leaf="safetensors.torch:load_file")) == {}
