"""Break the product on purpose, one way at a time, and see that a test notices: `make mutants`.

Each mutant is a replacement in a copy of the repository; the tests named beside it have to fail there. Words on the
command line choose the mutants that have one of them in their description.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    what: str
    file: str
    old: str
    new: str
    test: str


# the step, the plan and the evaluation
STEP = [
    Mutant(
        "divide by rank-local counts", "src/isostep/train/step.py",
        "scale = self.accelerator.num_processes / window.weight",
        "scale = 1.0 / sum(len(p[self.accelerator.process_index].indices) for p in window.passes)",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[2]",
    ),
    Mutant(
        "divide by nothing of the ranks", "src/isostep/train/step.py",
        "scale = self.accelerator.num_processes / window.weight", "scale = 1.0 / window.weight",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[2]",
    ),
    Mutant(
        "drop the short window", "src/isostep/data/plan.py",
        "self.windows_per_epoch = -(-len(lengths)", "self.windows_per_epoch = (len(lengths)",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[1]",
    ),
    Mutant(
        "step the scheduler per rank", "src/isostep/train/step.py",
        "optimizer, split_batches=True", "optimizer, split_batches=False",
        "tests/distributed/test_gradients.py::test_the_scheduler_moves_once_per_optimizer_step",
    ),
    Mutant(
        "shuffle per rank", "src/isostep/data/plan.py",
        "np.random.SeedSequence([self.seed, epoch])",
        "np.random.SeedSequence([self.seed, epoch, int(__import__('os').environ.get('RANK', '0'))])",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[2]",
    ),
    Mutant(
        "train on a placeholder", "src/isostep/train/step.py",
        'return (losses * batch["weights"]).sum()', "return losses.sum()",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[3]",
    ),
    Mutant(
        "evaluate a placeholder", "src/isostep/train/evaluate.py",
        'real = batch["weights"] > 0', 'real = batch["weights"] >= 0',
        "tests/distributed/test_evaluation.py::test_p2_an_evaluation_equals_the_rows_taken_one_by_one[3]",
    ),
    Mutant(
        "average batch means", "src/isostep/train/evaluate.py",
        "loss = float(losses[order].astype(np.float64).sum() / len(order))",
        "loss = float(np.mean([own[3].mean() for own in gathered if len(own[3])]))",
        "tests/distributed/test_evaluation.py::test_p2_an_evaluation_equals_the_rows_taken_one_by_one[3]",
    ),
]  # fmt: skip

# each protection that a fault in tests/faults/ needs, taken out
FAULTS = [
    Mutant(
        "no backward before the first step", "src/isostep/train/step.py",
        "            self.accelerator.backward(self._loss_sum(batch) * 0.0)\n", "            pass\n",
        "tests/faults/test_kills.py::test_p3_kill_9_of_one_rank_in_a_step[3]",
    ),
    Mutant(
        "a resumed rank draws dropout anew", "src/isostep/train/resume.py",
        "restore_rank(saved, ranks.rank, loop.accelerator.device)", "pass",
        "tests/faults/test_kills.py::test_p3_kill_9_of_one_rank_in_a_step[2]",
    ),
    Mutant(
        "rows after the checkpoint stay", "src/isostep/track/record.py",
        'if row["step"] <= step]', "]",
        "tests/faults/test_kills.py::test_p3_kill_9_of_one_rank_in_a_step[2]",
    ),
    Mutant(
        "save in the place where it is seen", "src/isostep/checkpoint/store.py",
        'return root / f".step-{step:08d}.tmp"', "return step_folder(root, step)",
        "tests/faults/test_kills.py::test_p5_kill_9_of_rank_0_at_every_stage_of_a_save[write]",
    ),
    Mutant(
        "leave what is half written", "src/isostep/checkpoint/store.py",
        'root.glob(".step-*.tmp") if root.is_dir() else ()', "()",
        "tests/faults/test_kills.py::test_p5_kill_9_of_rank_0_at_every_stage_of_a_save[write]",
    ),
    Mutant(
        "ranks outlive their launcher", "src/isostep/train/ranks.py",
        'sys.platform == "linux" and', "False and",
        "tests/faults/test_kills.py::test_kill_9_of_the_launcher_takes_the_ranks_with_it",
    ),
    Mutant(
        "forget the losses since the last row", "src/isostep/train/resume.py",
        "sums[ranks.rank] if same else sum(sums) * ranks.is_main", "0.0",
        "tests/faults/test_kills.py::test_p4_resumed_on_any_number_of_ranks_it_is_the_same_curve[1]",
    ),
    Mutant(
        "start again at the epoch's first window", "src/isostep/train/loop.py",
        "self.sampler.start_at(state.epoch, state.window)", "self.sampler.start_at(state.epoch, 0)",
        "tests/faults/test_kills.py::test_p4_resumed_on_any_number_of_ranks_it_is_the_same_curve[1]",
    ),
    Mutant(
        "deaf to SIGTERM", "src/isostep/train/stop.py",
        "SIGNALS = (signal.SIGTERM, ", "SIGNALS = (",
        "tests/faults/test_stops.py::test_p6_a_wish_to_stop_saves_the_step_and_the_same_command_goes_on"
        "[SIGTERM to the launcher]",
    ),
    Mutant(
        "deaf to SIGUSR1", "src/isostep/train/stop.py",
        "signal.SIGUSR1, signal.SIGINT)", "signal.SIGINT)",
        "tests/faults/test_stops.py::test_p6_a_wish_to_stop_saves_the_step_and_the_same_command_goes_on"
        "[SIGUSR1 to one worker]",
    ),
    Mutant(
        "tell the others nothing of a signal", "src/isostep/train/stop.py",
        "torch.tensor([self.reason is not None, calls]", "torch.tensor([False, calls]",
        "tests/faults/test_stops.py::test_p6_a_wish_to_stop_saves_the_step_and_the_same_command_goes_on"
        "[SIGTERM to one worker]",
    ),
    Mutant(
        "never look for the STOP file", "src/isostep/train/stop.py",
        "if self.file is None or", "if True or",
        "tests/faults/test_stops.py::test_p6_a_wish_to_stop_saves_the_step_and_the_same_command_goes_on[a STOP file]",
    ),
    Mutant(
        "deaf in an evaluation", "src/isostep/train/evaluate.py",
        "if self.stop.poll():", "if False:",
        "tests/faults/test_stops.py::test_p6_inside_an_evaluation_which_is_made_after_the_resume"
        "[SIGTERM to one worker]",
    ),
    Mutant(
        "deaf while it tokenises", "src/isostep/train/stop.py",
        "        if self._preparing:\n", "        if False:\n",
        "tests/faults/test_stops.py::test_p6_in_preprocessing_before_anything_is_trained",
    ),
    Mutant(
        "die of the second signal", "src/isostep/train/stop.py",
        "        self.reason = self.reason or signal", "        signal.signal(number, signal.SIG_DFL)\n"
        "        self.reason = self.reason or signal",
        "tests/faults/test_stops.py::test_a_second_signal_during_the_save_changes_nothing",
    ),
    Mutant(
        "a second Ctrl-C changes nothing", "src/isostep/train/stop.py",
        "ABORT_WITHIN = 5.0", "ABORT_WITHIN = 0.0",
        "tests/faults/test_stops.py::test_a_second_ctrl_c_within_five_seconds_aborts_and_the_older_checkpoint_is_intact",
    ),
    Mutant(
        "save in the place where it is seen, past the grace period", "src/isostep/checkpoint/store.py",
        'return root / f".step-{step:08d}.tmp"', "return step_folder(root, step)",
        "tests/faults/test_stops.py::test_a_save_that_outlasts_the_grace_period_costs_only_itself",
    ),
    Mutant(
        "a full disk is an error like any other", "src/isostep/checkpoint/saving.py",
        "DISK_FULL = 28", "DISK_FULL = -1",
        "tests/faults/test_saves.py::test_p5_a_save_that_fails_on_one_rank_fails_on_all_and_the_one_before_is_intact"
        "[1-full]",
    ),
    Mutant(
        "leave a failed save's files", "src/isostep/checkpoint/saving.py",
        "shutil.rmtree(made, ignore_errors=True)", "pass",
        "tests/faults/test_saves.py::test_p5_a_save_that_fails_on_one_rank_fails_on_all_and_the_one_before_is_intact"
        "[0-raise]",
    ),
    Mutant(
        "a save's failure stays with its rank", "src/isostep/checkpoint/saving.py",
        "self.ranks.agree(lambda: self._write(made, state, sums))", "self._write(made, state, sums)",
        "tests/faults/test_saves.py::test_p5_a_save_that_fails_on_one_rank_fails_on_all_and_the_one_before_is_intact"
        "[1-raise]",
    ),
    Mutant(
        "take a checkpoint as it is", "src/isostep/checkpoint/store.py",
        "            verify(folder)\n        except", "            pass\n        except",
        "tests/faults/test_saves.py::test_p5_a_damaged_checkpoint_is_set_aside_by_name_and_the_one_before_is_used"
        "[weights cut off]",
    ),
    Mutant(
        "do not compare hashes", "src/isostep/checkpoint/store.py",
        "if describe(path).xxh3 != digest:", "if False:",
        "tests/faults/test_saves.py::test_p5_a_damaged_checkpoint_is_set_aside_by_name_and_the_one_before_is_used"
        "[a flipped bit in the optimizer]",
    ),
    Mutant(
        "do not miss a file", "src/isostep/checkpoint/store.py",
        "        path = folder / name\n", "        path = folder / name\n        if not path.exists():\n"
        "            continue\n",
        "tests/faults/test_saves.py::test_p5_a_damaged_checkpoint_is_set_aside_by_name_and_the_one_before_is_used"
        "[no rank file]",
    ),
    Mutant(
        "fail on a manifest that is no JSON", "src/isostep/checkpoint/store.py",
        "except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:", "except KeyError as error:",
        "tests/faults/test_saves.py::test_p5_a_damaged_checkpoint_is_set_aside_by_name_and_the_one_before_is_used"
        "[an empty manifest]",
    ),
    Mutant(
        "an unusable checkpoint asked for by name is passed over", "src/isostep/checkpoint/saving.py",
        "step = int(store.verify(asked)[\"step\"])", "step = store.step_of(asked)",
        "tests/faults/test_saves.py::test_an_unusable_checkpoint_asked_for_by_name_is_exit_code_6",
    ),
    Mutant(
        "unpickle a checkpoint", "src/isostep/checkpoint/contents.py",
        '        with safe_open(path, framework="pt") as file:',
        '        __import__("pickle").loads(path.read_bytes()) if path.read_bytes()[:1] == b"\\x80" else None\n'
        '        with safe_open(path, framework="pt") as file:',
        "tests/faults/test_saves.py::test_p10_no_file_of_a_checkpoint_is_unpickled_even_with_a_manifest_that_vouches_"
        "for_it[optimizer.safetensors]",
    ),
    Mutant(
        "apply a gradient that is not finite", "src/isostep/train/step.py",
        "(~torch.isfinite(norm)).to(torch.float32)", "torch.zeros(())",
        "tests/faults/test_divergence.py::test_p7_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all[nan]",
    ),
    Mutant(
        "go on for ever", "src/isostep/train/loop.py",
        "if self.state.nonfinite_in_a_row >= limit:", "if False:",
        "tests/faults/test_divergence.py::"
        "test_p7_for_ever_it_ends_the_run_and_neither_the_best_nor_a_checkpoint_holds_it",
    ),
    Mutant(
        "wait for ever", "src/isostep/train/ranks.py",
        "InitProcessGroupKwargs(timeout=timedelta(seconds=config.run.timeout))",
        "InitProcessGroupKwargs(timeout=timedelta(seconds=900))",
        "tests/faults/test_hangs_and_writers.py::"
        "test_a_rank_that_hangs_is_named_with_its_phase_and_the_run_ends_within_the_timeout",
    ),
    Mutant(
        "do not say who is silent", "src/isostep/train/watch.py",
        "if now - beat > SILENT else", "if False else",
        "tests/faults/test_hangs_and_writers.py::"
        "test_a_rank_that_hangs_is_named_with_its_phase_and_the_run_ends_within_the_timeout",
    ),
    Mutant(
        "do not say which rows a loader failed on", "src/isostep/data/loader.py",
        "rows {', '.join(map(str, part.indices))} can't be read: {error}", "{error}",
        "tests/faults/test_hangs_and_writers.py::test_a_loaders_worker_that_fails_is_one_error_that_names_the_rows",
    ),
    Mutant(
        "let W&B end the run", "src/isostep/track/wandb.py",
        "except Exception as error:  # whatever the client raises: the run matters more",
        "except KeyError as error:",
        "tests/faults/test_hangs_and_writers.py::"
        "test_p8_a_wandb_server_that_is_down_costs_its_timeout_and_nothing_else",
    ),
    Mutant(
        "two writers", "src/isostep/track/lock.py",
        "if holder is not None and not self._is_dead(holder):", "if False:",
        "tests/faults/test_hangs_and_writers.py::"
        "test_a_second_start_in_a_folder_in_use_is_refused_by_the_holders_name_and_costs_the_first_nothing",
    ),
]  # fmt: skip


def survives(mutant: Mutant) -> bool:
    """True if the test passes although the product is broken: then the test is worth nothing."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "isostep"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "runs", ".*_cache"))
        file = copy / mutant.file
        text = file.read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.what}: {mutant.old!r} stands {text.count(mutant.old)} times"
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": str(copy / "src")}
        done = subprocess.run([sys.executable, "-m", "pytest", "-x", mutant.test], cwd=copy, env=env,
                              capture_output=True, text=True)  # fmt: skip
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return done.returncode == 0


def main(words: list[str]) -> int:
    chosen = [mutant for mutant in (*STEP, *FAULTS) if not words or any(word in mutant.what for word in words)]
    survivors = 0
    for mutant in chosen:
        alive = survives(mutant)
        survivors += alive
        print(f"{'SURVIVED' if alive else 'caught  '}  {mutant.what}  ({mutant.test})", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
