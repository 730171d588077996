"""What torch_lab.py keeps and what torch_report.py says. Needs no torch: what is timed, `torch_lab.py --quick` checks."""

import json
import tempfile
import unittest
from pathlib import Path

import torch_cell
import torch_figures
import torch_lab
import torch_report
from torch_auto import judged
from torch_figures import Report, figure
from torch_plan import AUTO, CHOICES, DENSE, ENCRYPTED, LINKS, METHODS, MODELS, NOTHING, OLD, PLAIN, RIVALS, ROUNDS, SLOW
from torch_targets import STEP_METHOD, compared, targets

OURS = "gradwire top-k 1 %"
FREE = [*LINKS][-1]


def line(method, **other):
    """Compute of 100 ms, to which a step adds nothing."""
    key = {"kind": "time", "model": "lstm", "ranks": 2, "link": SLOW, "round": 1, "method": method, "variant": PLAIN}
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


class TargetsTest(unittest.TestCase):
    def verdicts(self, *lines):
        """Of the targets that were timed."""
        return {target.what: target.verdict for target in targets(Report(lines)) if target.found}

    def test_a_method_is_compared_with_what_took_turns_with_it(self):
        for steps, verdict in [([0.1, 0.2, 0.1], "met"), ([0.3, 0.3, 0.1], "undecided"), ([0.3, 0.3, 0.21], "missed")]:
            ours = line("gradwire none", turns=steps)
            for other in [line(DENSE, turns=[0.2] * 3), line("gradwire none", variant=OLD, turns=[0.2] * 3)]:
                found = self.verdicts(ours, other)
                what = "step ≤ the older hook's" if other["variant"] == OLD else "step ≤ that of PyTorch's all-reduce"
                self.assertEqual(found, {what: verdict})

    def test_turns_of_other_rounds_are_no_pairs(self):
        lines = [line(OURS, turns=[0.3]), line(OURS, variant=OLD, round=2, turns=[0.2])]
        self.assertEqual(self.verdicts(*lines), {})
        lines.append(line(OURS, round=2, turns=[0.1]))
        self.assertEqual(self.verdicts(*lines), {"step ≤ the older hook's": "met"})

    def test_the_cpu_time_that_is_compared_is_what_a_hook_adds(self):
        old = line(OURS, variant=OLD, turns=[0.2], cpu_turns=[0.12])
        for cpu, verdict in [(0.119, "met"), (0.121, "missed")]:
            found = self.verdicts(line(OURS, turns=[0.2], cpu_turns=[cpu]), old)
            self.assertEqual(found, {"step ≤ the older hook's": "met", "added CPU ≤ the older hook's": verdict})

    def test_the_shortest_step_has_a_target_of_each_model(self):
        for model, step, verdict in [("lstm", 0.1379, "met"), ("lstm", 0.1381, "missed"), ("gpt", 0.1379, "missed")]:
            (found,) = self.verdicts(line(STEP_METHOD, model=model, turns=[step])).values()
            self.assertEqual(found, verdict)
        self.assertEqual(self.verdicts(line(STEP_METHOD, ranks=4, turns=[1])), {})

    def test_every_method_of_both_hooks_has_its_targets_and_each_is_said(self):
        report = Report([])
        both = [name for name, about in METHODS.items() if about.is_in_old and not about.views_of]
        self.assertEqual(len(both), 9)
        self.assertEqual(len(list(targets(report))), 2 + 2 * len(MODELS) * (2 * len(both) + len(RIVALS)))
        self.assertEqual({target.verdict for target in targets(report)}, {"not timed"})

    def test_encrypted_steps_are_a_column_and_count_nowhere_else(self):
        lines = [line(OURS, turns=[0.2]), line(OURS, variant=OLD, turns=[0.2])]
        before = self.verdicts(*lines)
        lines.append(line(OURS, variant=ENCRYPTED, step=0.4, turns=[0.4]))
        self.assertEqual(self.verdicts(*lines), before)
        row = compared(Report(lines), "lstm", OURS)
        self.assertEqual(row[-2:], ["1.00 · –", "4.00"])

    def test_a_median_lies_in_its_interval_as_often_as_it_is_said(self):
        self.assertIsNone(figure([]))
        few, many = figure([3, 1, 2]), figure(range(15))
        self.assertEqual([few.low, few.median, few.high], [1, 2, 3])
        # As tables of the sign test have it: for 15 values, the fourth of each end.
        self.assertEqual([many.low, many.median, many.high, many.count], [3, 7, 11, 15])


class ReportTest(unittest.TestCase):
    def test_ranks_that_share_a_core_wait_for_the_cpu_time_of_each_other(self):
        timed = {"step": 0.15, "cpu": 0.12, "compute_cpu": 0.1}
        self.assertAlmostEqual(torch_figures.wait(line(OURS, ranks=2, **timed)), 0.3)
        self.assertAlmostEqual(torch_figures.wait(line(OURS, ranks=4, **timed)), 0.1)

    def test_what_was_timed_beside_other_programs_does_not_count(self):
        disturbed = Report([line(OURS, others=0.5), line(DENSE, others=0.05)])
        self.assertEqual([len(disturbed.times), disturbed.busy], [1, 1])
        self.assertEqual(len(Report([line(OURS, others=0.5)], takes_busy=True).times), 1)

    def test_tables_have_a_cell_for_each_column(self):
        both = [line(method, rust=0.01, encode=0.001, decode=0.001) for method in METHODS]
        both += [line(method, variant=variant) for method in METHODS for variant in (OLD, ENCRYPTED)]
        report = Report([machine(), *both])
        for text in (torch_report.summary(report), torch_report.details(report), torch_report.verdicts(report)):
            columns = 0
            for row in "\n".join(text).splitlines():
                columns = 0 if not row.startswith("|") else columns or row.count("|")
                self.assertEqual(row.count("|") or columns, columns, row)

    def test_the_parts_of_a_step_add_up(self):
        timed = {"step": 0.13, "encode": 0.008, "decode": 0.002, "cpu": 0.13}
        *_, row = torch_report.parts(Report([line(NOTHING, step=0.105), line(STEP_METHOD, **timed)]))
        numbers = [float(cell) for cell in row.split("|")[2:-1]]
        self.assertEqual(numbers, [100.0, 5.0, 8.0, 2.0, 15.0, 130.0])

    def test_what_was_measured_elsewhere_says_so(self):
        learned = {"kind": "accuracy", "model": "lstm", "method": DENSE, "steps": MODELS["lstm"].steps, "lr": 1.0}
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

    def test_lines_of_a_program_that_knew_no_variants_are_measured_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.jsonl"
            before = line(DENSE)
            del before["variant"]
            path.write_text(f"{json.dumps(before)}\n")
            self.assertFalse(torch_lab.Results(path).has(method=DENSE, variant=PLAIN))

    def test_each_round_has_all_methods_in_another_order(self):
        chosen = torch_lab.parse(["results.jsonl", "--models", "gpt"])
        orders = [[cell[0]["method"] for cell in torch_lab.cells_of(chosen, turn, 2, FREE)] for turn in range(1, ROUNDS + 1)]
        self.assertEqual(len({tuple(order) for order in orders}), ROUNDS)
        cells = [torch_lab.cells_of(chosen, turn, 2, FREE) for turn in range(1, ROUNDS + 1)]
        for found in cells:
            self.assertEqual(sorted(key["method"] for cell in found for key in cell), sorted(METHODS))

    def test_what_is_compared_takes_turns(self):
        chosen = torch_lab.parse(["results.jsonl", "--models", "gpt", "--methods", f"{OURS},{DENSE},gradwire none"])

        def cells(link):
            found = torch_lab.cells_of(chosen, 1, 2, link)
            return {tuple((key["method"], key["variant"]) for key in cell) for cell in found}

        none = [("gradwire none", PLAIN), (DENSE, PLAIN)]
        self.assertEqual(cells(FREE), {((OURS, PLAIN),), tuple(none)})
        encrypted = ("gradwire none", ENCRYPTED)
        self.assertEqual(cells(SLOW), {((OURS, PLAIN), (OURS, ENCRYPTED)), (*none, encrypted)})
        chosen.old = Path("old")
        old = ("gradwire none", OLD)
        self.assertEqual(cells(SLOW), {((OURS, PLAIN), (OURS, OLD), (OURS, ENCRYPTED)), (*none, old, encrypted)})
        four = {key["variant"] for cell in torch_lab.cells_of(chosen, 1, 4, SLOW) for key in cell}
        self.assertEqual(four, {PLAIN, OLD})
        chosen.methods = [DENSE]
        self.assertEqual(cells(SLOW), {((DENSE, PLAIN),)})

    def test_every_name_can_be_asked_for(self):
        chosen = torch_lab.parse(["results.jsonl", "--methods", ",".join(METHODS), "--ranks", "4", "--links", FREE])
        self.assertEqual((chosen.methods, chosen.ranks, chosen.links), ([*METHODS], [4], [FREE]))


class Answering:
    """Ranks whose steps take as long as they are asked to; they note who was asked for what."""

    def __init__(self, name, step, asked):
        self.name, self.step, self.asked = name, step, asked

    def ask(self, what, **more):
        self.asked.append((self.name, what, more.get("count")))
        used = {"cpu": self.step * more.get("count", 0), "sent": 0.0}
        found = {"begin": {"warm": self.step}, "compute": {"steps": [0.1], "cpu": 0.1}, "end": {}}
        found["steps"] = {"took": [self.step] * more.get("count", 0), "used": used}
        return [found[what]] * 2


class CellTest(unittest.TestCase):
    def test_parties_take_turns_and_each_is_the_first_one_as_often(self):
        asked = []
        parties = [torch_cell.Party(Answering(name, step, asked), line(OURS)) for name, step in [("a", 0.1), ("b", 0.02)]]
        for party in parties:
            party.begin(1)
        torch_cell.take_turns(parties, first=1)
        turns = [(name, count) for name, what, count in asked if what == "steps"]
        self.assertEqual(turns, [("b", 8), ("a", 2), ("a", 2), ("b", 8)] * 2 + [("b", 8), ("a", 2)])
        found = parties[1].line()
        self.assertEqual([found["steps"], found["step"], found["turns"], found["cpu"]], [40, 0.02, [0.02] * 5, 0.02])

    def test_who_fails_leaves_the_turns_to_the_others(self):
        class Failing(Answering):
            def ask(self, what, **more):
                return [{"error": "late"}] if what == "steps" else super().ask(what, **more)

        parties = [torch_cell.Party(kind("x", 0.1, []), line(OURS)) for kind in (Failing, Answering)]
        for party in parties:
            party.begin(1)
        torch_cell.take_turns(parties, first=0)
        self.assertEqual([party.line().get("error") for party in parties], ["late", None])
        self.assertEqual(len(parties[1].line()["turns"]), 5)

    def test_the_answers_of_ranks_are_one_mean(self):
        answers = [
            {"took": [0.1, 0.3], "used": {"cpu": 1.0}, "choice": "a"},
            {"took": [0.3, 0.5], "used": {"cpu": 2}, "choice": "b"},
        ]
        self.assertEqual(torch_cell.mean_of(answers), {"took": [0.2, 0.4], "used": {"cpu": 1.5}, "choice": "a"})
