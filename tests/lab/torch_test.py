"""What torch_lab.py keeps and what torch_report.py says. Needs no torch: what is timed, `torch_lab.py --quick` checks."""

import json
import tempfile
import unittest
from pathlib import Path

import torch_lab
import torch_report
from torch_auto import judged
from torch_plan import AUTO, CHOICES, DENSE, METHODS, MODELS, NOTHING, ROUNDS
from torch_report import FREE, SLOW, Report

OURS = "gradwire top-k 1 %"


def line(method, **other):
    """Compute of 100 ms, to which a step adds nothing."""
    key = {"kind": "time", "model": "lstm", "ranks": 2, "link": SLOW, "round": 1, "method": method}
    seconds = dict.fromkeys(["step", "low", "high", "compute", "cpu", "compute_cpu"], 0.1)
    return {**key, **seconds, "sent": 1000.0, "others": 0.0, **other}


def machine():
    return {"kind": "machine", "processor": "one", "cores": 2, "torch": "2", "gradwire": "0"}


class AutoTest(unittest.TestCase):
    def test_what_is_chosen_is_compared_with_the_fastest_of_the_list(self):
        of_rounds = [(1, 0.3, "auto: b"), (2, 0.1, "auto: a"), (3, 0.2, "auto: b")]
        lines = [line(AUTO, round=turn, step=step, choice=f"{text} from step 9 on") for turn, step, text in of_rounds]
        lines += [line(CHOICES[2], step=0.19), line(CHOICES[3], step=0.5), line(OURS, step=0.01, others=0.9), machine()]
        lines += [line(DENSE, step=0.01), line(CHOICES[1], step=0.01, link=FREE)]
        self.assertEqual(list(judged(lines)), [(("lstm", 2, SLOW), "auto: b", 0.2, CHOICES[2], 0.19)])


class ReportTest(unittest.TestCase):
    def verdicts(self, *lines):
        return [verdict for _, _, _, verdict in torch_report.targets(Report(lines))]

    def test_a_target_is_reached_up_to_its_limit(self):
        nothing = line(NOTHING, cpu=0.101)
        for more, verdicts in [
            ({"step": 0.125, "cpu": 0.116, "rust": 0.01}, ["reached", "reached", "reached"]),
            ({"step": 0.126, "cpu": 0.117, "rust": 0.01}, ["not reached", "reached", "not reached"]),
            # Nothing computes for 11 ms.
            ({"step": 0.121, "cpu": 0.110, "rust": 0.01}, ["reached", "not reached", "reached"]),
            ({"step": 0.125, "cpu": 0.116}, ["reached", "reached", "–"]),
        ]:
            with self.subTest(more):
                self.assertEqual(self.verdicts(nothing, line(OURS, **more)), verdicts)

    def test_ranks_that_share_a_core_wait_for_the_cpu_time_of_each_other(self):
        timed = {"step": 0.15, "cpu": 0.12, "compute_cpu": 0.1}
        self.assertAlmostEqual(torch_report.wait(line(OURS, ranks=2, **timed)), 0.3)
        self.assertAlmostEqual(torch_report.wait(line(OURS, ranks=4, **timed)), 0.1)

    def test_without_limit_a_step_is_compared_with_that_of_the_same_round(self):
        lines = [line(DENSE, link=FREE, round=turn, step=0.1 * turn) for turn in (1, 2, 3)]
        lines += [line(OURS, link=FREE, round=turn, step=step) for turn, step in [(1, 0.102), (2, 0.204), (3, 2.7)]]
        self.assertEqual(self.verdicts(*lines), ["reached"])
        self.assertEqual(self.verdicts(*lines, line(OURS, link=FREE, round=2, step=0.21)), ["not reached"])

    def test_what_was_timed_beside_other_programs_does_not_count(self):
        self.assertEqual(self.verdicts(line(OURS, others=0.5)), [])
        self.assertTrue(self.verdicts(line(OURS, others=0.05)))
        self.assertEqual(Report([line(OURS, others=0.5)]).busy, 1)

    def test_ours_is_the_fastest_that_learns_as_much(self):
        learned = {"kind": "accuracy", "model": "lstm", "steps": MODELS["lstm"].steps, "lr": 1.0, "train_loss": 1.0}
        fast, slow = "gradwire top-k 0.1 %", OURS
        lines = [line(fast, step=0.11), line(slow, step=0.12)]
        lines += [{**learned, "method": method, "evaluations": [[1, loss]]} for method, loss in [(DENSE, 5.0), (slow, 5.04)]]
        self.assertEqual(Report(lines).best("lstm", 2, SLOW), fast)
        worse = {**learned, "method": fast, "evaluations": [[1, 5.06]]}
        self.assertEqual(Report([*lines, {**worse, "steps": 5}]).best("lstm", 2, SLOW), fast)
        lines.append(worse)
        self.assertEqual(Report(lines).best("lstm", 2, SLOW), slow)

    def test_tables_have_a_cell_for_each_column(self):
        report = Report([machine(), *(line(method, rust=0.01, encode=0.001, decode=0.001) for method in METHODS)])
        for text in (torch_report.summary(report), torch_report.details(report)):
            columns = 0
            for row in "\n".join(text).splitlines():
                columns = 0 if not row.startswith("|") else columns or row.count("|")
                self.assertEqual(row.count("|") or columns, columns, row)

    def test_the_parts_of_a_step_add_up(self):
        timed = {"step": 0.13, "encode": 0.008, "decode": 0.002, "cpu": 0.13}
        *_, row = torch_report.parts(Report([line(NOTHING, step=0.105), line(OURS, **timed)]))
        numbers = [float(cell) for cell in row.split("|")[3:-1]]
        self.assertEqual(numbers, [100.0, 5.0, 8.0, 2.0, 15.0, 130.0, 125.0])

    def test_what_was_measured_elsewhere_says_so(self):
        learned = {"kind": "accuracy", "model": "lstm", "method": DENSE, "steps": 1, "lr": 1.0, "evaluations": [[1, 5.0]]}
        report = Report([machine(), line(DENSE), {**machine(), "processor": "other"}, learned])
        self.assertEqual([report.timed_on[0][:3], report.trained_on[0][:5]], ["one", "other"])

    def test_a_document_keeps_what_stands_around_the_summary(self):
        document = f"before\n{torch_report.BEGIN}\nold\n{torch_report.END}\nafter\n"
        self.assertEqual(torch_report.replaced(document, "new"), document.replace("old", "new"))
        with self.assertRaises(AssertionError):
            torch_report.replaced("no marks", "new")


class ResultsTest(unittest.TestCase):
    def test_what_failed_or_was_disturbed_is_measured_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.jsonl"
            lines = [line(DENSE), line(NOTHING, others=1.5), {**line(OURS), "error": "late"}]
            path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
            results = torch_lab.Results(path)
            found = [results.has(model="lstm", method=method, round=1) for method in (DENSE, NOTHING, OURS)]
            self.assertEqual(found, [True, False, False])
            results.add(line(OURS))
            self.assertTrue(torch_lab.Results(path).has(method=OURS))

    def test_each_round_has_all_methods_in_another_order(self):
        chosen = torch_lab.parse(["results.jsonl", "--models", "gpt"])
        orders = [[key["method"] for key in torch_lab.keys_of(chosen, turn, 2, SLOW)] for turn in range(1, ROUNDS + 1)]
        self.assertEqual(len({tuple(order) for order in orders}), ROUNDS)
        self.assertTrue(all(sorted(order) == sorted(METHODS) for order in orders))

    def test_every_name_can_be_asked_for(self):
        chosen = torch_lab.parse(["results.jsonl", "--methods", ",".join(METHODS), "--ranks", "4", "--links", FREE])
        self.assertEqual((chosen.methods, chosen.ranks, chosen.links), ([*METHODS], [4], [FREE]))
